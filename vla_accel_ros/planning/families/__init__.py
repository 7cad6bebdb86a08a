"""The stages of each family as operations, from its sizes alone.

work: the load of a stage and its dtypes. stacks: layers that families share. pi, openvla, smolvla: each has
`stages`, the operations of encode, prefill, denoise and decode, and `weight_parts` or `weight_bytes`, the
size of the loaded parameters. find: the family of given sizes.
"""
