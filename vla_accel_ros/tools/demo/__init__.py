"""`vla demo`: run the whole stack as processes through episodes, and watch, film and measure it."""
