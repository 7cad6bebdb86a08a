"""Captured micro-requests: inputs, a graph, outputs.

stage: what a stage is; stages: those of one engine that are of kernels; kinds: which of them by the
precision. prefill/: from pixels to keys and values; denoise/: from noise to chunks; packed_forward,
packed_stage: rows of several frames in one forward; plain/: a policy's own functions, where there are no
kernels; memory/: pixels, numbers and weights between host and device; precision, int8: fewer bits; dropping:
those alone, without the exact weights.
"""
