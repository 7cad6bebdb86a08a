"""The Triton kernels; importing these modules requires triton.

launch: shared prologue and launch options. Few rows: linear, project, attention, flow, small_weights. Many
rows: norm, heads, quantized, int8, rotary_attention, full_attention. Packed forwards: packed_attention,
rows. Pixels: image.
"""
