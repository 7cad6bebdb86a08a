"""Where micro-batches run.

lane: a thread, what it has launched, and the robots' streams while which it has one; streams, partitions: on
which CUDA streams and multiprocessors; partitioned: what is made of the option for them, from split_times;
times: when micro-batches ran.
"""
