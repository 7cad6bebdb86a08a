"""A fleet in simulated time, on the policies and tasks of the real one.

workloads: tasks of named kinds, drawn with a seed; traces: recorded ones. profiles: what a batch takes, from
a file or assumed. robot: one robot's motion. simulation: the events. runs: a whole run. figures: what came of
it.
"""
