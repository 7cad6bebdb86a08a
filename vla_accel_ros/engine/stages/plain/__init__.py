"""A policy's plain functions as captured stages, for model families without stages of their own.

prefix: from images to what is kept of a frame. step: one solver step of a chunk, and what comes before the
first. stages: the stages of one engine, and staggered chunks. kernels: has kernels compute residual streams.
"""
