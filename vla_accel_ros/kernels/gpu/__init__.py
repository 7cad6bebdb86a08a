"""The Triton kernels; importing these modules needs triton."""
