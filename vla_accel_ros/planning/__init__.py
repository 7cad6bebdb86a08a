"""Predict what a model will take on a device: times, memory, and the rates that a contract can promise.

operations: what one launch computes and moves. work: the load of a model. trace: what its plain modules
compute, by running them on meta tensors. networks: those modules. stages: an engine's launches from that;
plain: those of families without stages of kernels. sizes: known models by name,
and the sizes of a folder. device: numbers of a GPU, each with its source, from the YAML files in devices/.
cost: duration of an operation on a device. rows: duration of 8-bit products of our own kernel. memory: what
is held. plan: the whole prediction. verdict: rates against a plan, what is late and what fixes it. fleet:
robots on one engine. measure: micro-benchmarks that make a device file. micro: the kernels that they time.
"""
