"""The node `inference` of a robot without a GPU: a fleet makes its chunks. Nothing here imports torch.

node: the lifecycle node; link: its topics to the fleet's scheduler; reports: its diagnostics. Its inputs and
the output of chunks are in nodes/inference.
"""
