"""Recorded tasks through the node fleet_scheduler, in real time, for bench/fleet_validation.py.

scheduler: a program with the node, whose replica waits for the recorded time instead of computing. robots:
all robots in one process, each with the motion of a simulated one. tasks: the tasks that they do.
"""
