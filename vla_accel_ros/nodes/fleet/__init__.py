"""The node that serves many robots with one model: it takes their requests and decides whose turn it is.

node: the lifecycle node; topics: those of one robot; contracts: a robot's contract as received; engines: the
engines, in this process or in Ray actors; sessions: what chunks are computed with, for recorders; reports:
its diagnostics, and other schedulers; clock: real or simulated time; fleet_convert,
fleet_pictures: its messages.
"""
