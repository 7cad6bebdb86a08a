"""`vla doctor`: what is wrong with a running robot, and what mends it."""
