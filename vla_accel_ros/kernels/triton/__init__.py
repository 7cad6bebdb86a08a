"""The Triton kernels; importing these modules needs triton.

launch: what every kernel starts with. Few rows: linear, project, attention, flow, small_weights; many rows:
norm, quantized, int8, rotary_attention; packed forwards: packed_attention, rows; pixels: image.
"""
