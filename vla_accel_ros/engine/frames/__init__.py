"""What makes a frame's prefix.

preprocess: pixels of observations; prefill: encode and prefill, at once or in groups of layers.
"""
