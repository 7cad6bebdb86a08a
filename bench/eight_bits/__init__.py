"""The effect of 8 bits on actions; see bench/w8a8.py.

errors: of the bundled policy, on a CPU. kernels: on a GPU. outliers: random weights with outlier columns.
predicted: times by a plan. frontier: an Orin with each option.
"""
