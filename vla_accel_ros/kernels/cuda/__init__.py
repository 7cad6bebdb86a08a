"""Kernels in CUDA C++ for what Triton cannot reach, compiled at run time on the device.

compiling: compiler and launch. Beside each .cu file is the Python module that launches it: products (a
denoise layer), linear_layers (of few rows, also by products.cu), tiles (the image encoder), attention (a
denoise step), rotary_attention (staggered chunks), view_attention (the image encoder).
"""
