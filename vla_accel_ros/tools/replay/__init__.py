"""`vla replay`: a recorded run through the engine again, compared to the bit."""
