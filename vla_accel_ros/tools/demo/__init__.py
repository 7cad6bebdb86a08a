"""`vla demo`: the whole stack as processes, driven through episodes, watched, filmed and measured."""
