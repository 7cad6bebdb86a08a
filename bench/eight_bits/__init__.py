"""What 8 bits do to actions; see bench/w8a8.py.

errors: the bundled policy's, on a CPU; kernels: on a GPU; outliers: random weights with
columns of outliers; predicted: times by a plan.
"""
