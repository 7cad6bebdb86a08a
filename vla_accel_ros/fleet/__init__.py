"""Many robots on few GPUs. Imports no torch, so that a robot whose GPU is elsewhere can use it.

horizon: how many leading actions of a chunk may be executed before another comes.
"""
