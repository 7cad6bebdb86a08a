"""A fleet in simulated time, with the rules and tasks of the real one.

workloads: tasks of named kinds, drawn from a seed. traces: recorded tasks. profiles: durations of
batches. robot: one robot's motion. simulation: the events. runs: a whole run and its
figures.
"""
