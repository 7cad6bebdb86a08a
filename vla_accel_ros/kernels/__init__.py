"""HOW it is fast: Triton kernels, each beside its torch twin of the same signature."""
