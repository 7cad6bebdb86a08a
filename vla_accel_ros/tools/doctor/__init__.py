"""`vla doctor`: find what is wrong with a running robot, and how to fix it."""
