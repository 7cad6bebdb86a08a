"""Kernels in CUDA C++ for what Triton does not reach, compiled on the device that runs them.

compiling: the compiler and the launch. Beside each .cu file is the module that launches it: products (a
denoising layer), tiles (the image encoder), attention, rotary_attention (staggered chunks), view_attention
(the image encoder).
"""
