"""The kernels in plain torch: what each computes, and what runs where there is no kernel for it."""
