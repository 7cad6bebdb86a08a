"""Layers that families share.

gemma, llama: decoder stacks that can attend to keys and values computed elsewhere. vision: SigLIP. vit: the
two image towers of OpenVLA. packed: one forward pass for several requests. fused: projections of one input as
one matrix. quantized: weights of eight or four bits. few_bits: layers that keep only quantised weights.
"""
