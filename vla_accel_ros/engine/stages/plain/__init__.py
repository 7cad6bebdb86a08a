"""A policy's plain functions as captured stages, for model families without kernels.

prefix: from images to keys and values. step: one solver step of a chunk. stages: the stages of one engine,
and staggered chunks.
"""
