"""Contact: what a force sensor tells, and what the arm does about it. Numpy only, time is given.

sensor: what a sensor is and how its samples are judged; executed: the path behind the arm, a stop on it and
the way back; guard: which of these, and when; taking_over: how the
node's thread goes on from there.
"""
