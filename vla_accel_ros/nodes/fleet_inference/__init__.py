"""The node `inference` of a robot without a GPU: a fleet makes its chunks. Nothing here imports torch.

node: the lifecycle node; link: its topics to the fleet's scheduler. What it shares
with the other node `inference` is nodes/inference/observing.py's.
"""
