"""Requests of agents on one engine: what bench/corun.py measures and simulates.

workload: arrivals, the outcome of each request, queueing theory. runner: requests as the scheduler's Runner.
model, captured: a CogAgent-sized model with random weights, and its CUDA graphs for each split of a GPU.
durations: times of its stages, alone and beside each other. simulation: the same policies and scheduler in
simulated time. rules: the scheduling rules of Nova's paper; schedulers: those that are compared; tuning:
their splits. robot: a robot's policy beside them.
"""
