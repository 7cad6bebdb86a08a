"""Where micro-batches run.

lane: a thread, and what it has launched; streams, partitions: on which CUDA streams and multiprocessors;
partitioned: what is made of the option for them, from split_times; times: when micro-batches ran.
"""
