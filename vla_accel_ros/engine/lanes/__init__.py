"""Runs micro-batches in lanes.

lane: a thread with its launched work. streams, partitions: the CUDA streams and multiprocessors of lanes.
partitioned: makes them from the option `partition`, with measurements of split_times. times: when
micro-batches ran.
"""
