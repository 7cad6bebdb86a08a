"""pi0-FAST: PaliGemma continues a prompt by tokens that are a chunk of actions.

config: sizes. model: the network. fast: tokens to numbers and back. checkpoint: lerobot's folders;
orbax_checkpoint: openpi's, of JAX. policy: a robot's units.
"""
