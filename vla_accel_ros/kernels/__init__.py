"""GPU kernels, each beside a plain reference with the same signature.

reference/: plain torch. triton/ and cuda/: kernels. ops: what a stage calls, with tuning and scratch memory.
early: what launches read before their time. tuning: block shapes, from the tables in the folder tuning/ or
chosen by block_shapes from candidates; shapes: what both are of; gpu: a GPU in numbers. work: the rows of a
packed forward.
"""
