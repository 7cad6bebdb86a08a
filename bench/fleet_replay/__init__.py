"""Recorded tasks through the node fleet_scheduler, in real time, for bench/fleet_validation.py.

scheduler: the node, whose replica takes the recorded time instead of computing; a program. robots: all robots
in one process, each with the motion of a simulated one. tasks: what they do.
"""
