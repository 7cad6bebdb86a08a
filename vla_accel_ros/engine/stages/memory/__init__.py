"""Memory of the host and the device, and copies between them.

host_memory: page-locked or mapped memory that a GPU reads directly. host_buffers: inputs and results of
stages. upload: pixels. offload, offload_report: streamed weights of vision, and what that costs and saves.
"""
