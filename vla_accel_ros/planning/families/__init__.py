"""The stages of each family as operations, from its sizes alone.

work: what is asked of a stage, and in which dtypes. stacks: layers that families share. pi, openvla, smolvla:
a function `stages`, the operations of encode, prefill, denoise and decode; and `weight_parts` or
`weight_bytes`, of a model's parameters as they are loaded. find: which of them a model is of.
"""
