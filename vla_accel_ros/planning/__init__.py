"""What a model will take on a device, before it is there: times, memory, rates that a contract can promise.

operations: what a launch computes and moves. families: those of each family's stages, from its sizes.
sizes: known models by name, and the sizes of a folder. device: numbers of a GPU, each with its source, from
the YAML files in devices/. cost: how long an operation takes there. rows: that of products in 8 bits by our
own kernel. memory: what is held. plan: all of it together, as one answer. verdict: rates against a plan, what
is late and what mends it. fleet: robots on one engine. measure: micro-benchmarks that make a device file.
micro: the kernels that they time; these two need torch.
"""
