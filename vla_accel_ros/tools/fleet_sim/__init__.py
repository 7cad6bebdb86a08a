"""`vla fleet-sim` and `vla fleet-trace`: a fleet in simulated time.

command holds the options of fleet-sim, and prints and writes its results. trace reads recorded tasks from
bags.
"""
