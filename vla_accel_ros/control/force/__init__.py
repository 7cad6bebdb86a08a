"""Contact: what a force sensor reports, and how the arm reacts. Numpy only; time is given.

sensor: a sensor's limits and how its samples are judged; executed: the commanded path of the past, a stop on
it and the way back along it; guard: which reaction comes when; reflexes: from a sample to a command, in the
sensors' thread; taking_over: how the node's thread goes on after a reaction.
"""
