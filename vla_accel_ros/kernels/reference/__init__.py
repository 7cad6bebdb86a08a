"""The kernels in plain torch: they define what each kernel computes, and run where there is no kernel."""
