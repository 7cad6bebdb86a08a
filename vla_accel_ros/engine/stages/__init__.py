"""Captured micro-requests: inputs, a graph, outputs.

stage: what a stage is; stages: those of one engine; prefill, prefill_fp8, denoise, finish: encode and
prefill, the steps of a chunk, what text begins with; layered, groups: layers of encode and prefill by
themselves, and frames in groups of them; plain, plain_stages: a policy's own functions, where there are no
kernels; seats, captured_seats: chunks at their own flow times in one step; wide: steps of many rows;
packed_forward: rows of several frames in one forward; towers: vision of policies that act by tokens; upload,
host_buffers, host_memory: pixels and numbers between host and device; precision: fewer bits; offload,
offload_report: weights of vision in host memory.
"""
