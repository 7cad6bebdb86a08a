"""`vla demo`: run the whole stack as processes through episodes, and watch and measure it."""
