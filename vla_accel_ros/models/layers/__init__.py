"""Layers that families share.

gemma and llama: decoder stacks that can read keys and values computed elsewhere; vision: SigLIP; vit: the
two image towers of OpenVLA. packed: one forward for several requests; fused: projections of one input as one
matrix; quantized: weights of eight or four bits; few_bits: layers that have no others.
"""
