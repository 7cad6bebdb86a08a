"""SmolVLA: a flow-matching expert beside the first layers of a small vision-language model.

model: the network. stack: its two decoder stacks. config: its sizes. folding: its folded form. policy: pre-
and post-processing. checkpoint, sizes: a folder that lerobot saved.
"""
