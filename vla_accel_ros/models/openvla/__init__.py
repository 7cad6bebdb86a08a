"""OpenVLA: a Llama stack that generates actions as tokens.

model: the network. config: its sizes. policy: from an observation to tokens and back. checkpoint, sizes,
stats: a published folder.
"""
