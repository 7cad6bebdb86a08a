"""Layers that families share.

gemma, llama: decoder stacks that can attend to keys and values computed elsewhere. vision: SigLIP. vit: the
two image towers of OpenVLA. qwen, qwen_vision: Qwen3's decoder and Qwen3-VL's image tower. dit: blocks of a
diffusion transformer. residual: residual streams, which kernels may compute. packed: one forward pass for
several requests. fused: projections of one input as one matrix. quantized: weights of eight or four bits.
fp4: numbers of NVFP4. few_bits: layers that keep only quantised weights. wan_vae: the encoder of Wan's VAE,
of one frame. holder: modules that only hold others.
"""
