"""Kernels in CUDA C++ for what Triton does not reach, compiled on the device that runs them."""
