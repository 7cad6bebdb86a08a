"""The node `inference` of a robot without a GPU: a fleet makes its chunks. Nothing here imports torch.

node: the lifecycle node; link: its topics to the fleet's scheduler; reports: its diagnostics. What it hears
and how its chunks go out is in nodes/inference.
"""
