"""Runs micro-batches in lanes.

lane: a stream with its launched work. streams, partitions: the CUDA streams and multiprocessors of lanes.
partitioned: makes them from the option `partition`, and measures what it is worth. times: when micro-batches
ran.
"""
