"""Captured micro-requests: inputs, a graph, outputs.

stage: the base class. stages: those of one engine that use kernels; making: makes them.
prefill/: from pixels to keys and values. denoise/: from noise to chunks. packed_forward, packed_stage: rows
of several frames in one forward. plain/: a policy's own functions, without kernels. memory/: pixels, numbers
and weights between host and device. precision, int8: computing in fewer bits. dropping: frees the exact
weights.
"""
