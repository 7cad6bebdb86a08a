"""A policy's plain functions as stages, for families without kernels of their own.

prefix: from images to keys and values; step: one Euler step of a chunk; stages: those of one engine, and
chunks in seats.
"""
