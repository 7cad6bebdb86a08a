"""Requests of agents on one engine: what bench/corun.py measures and simulates.

workload: arrivals, what became of each request, queueing theory. runner: requests as the scheduler's Runner.
model, captured: a CogAgent-sized model of random weights, and its CUDA graphs for each split of a GPU.
durations: how long its stages take alone and beside each other. simulation: the same policies on the same
scheduler in simulated time. schedulers: the policies that are compared; tuning: their splits. robot: a policy
of a robot beside them.
"""
