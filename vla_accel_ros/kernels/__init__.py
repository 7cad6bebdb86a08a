"""How it is fast: every kernel beside a plain reference of the same signature.

reference/: plain torch; triton/ and cuda/: kernels; ops: what a stage calls, with its tuning and scratch
memory. tuning: block shapes, from the tables of the folder tuning/; work: which rows of a packed forward are
whose.
"""
