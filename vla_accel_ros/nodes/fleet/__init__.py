"""The node that serves many robots of one model: their requests for chunks, and whose turn it is.

node: the lifecycle node; topics: those of one robot; contracts: a robot's contract as it travelled;
engines: what computes, here or in Ray actors; sessions: what chunks are computed with, for who records
them; reports: its diagnostics; clock: real or simulated time.
"""
