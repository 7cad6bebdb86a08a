"""What lies in the host's memory and on the device, and how it goes from one to the other.

host_memory: pages that a GPU reads by itself; host_buffers: inputs and results of stages; upload: pixels;
offload, offload_report: weights of vision that are streamed, and what that costs and saves.
"""
