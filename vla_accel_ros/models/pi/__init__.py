"""pi0 and pi0.5.

model: the network, whose parameters have openpi's names. folded, folding: the same network with fewer, larger
products; stored_fold: those kept beside the weights. checkpoint, lerobot_checkpoint, orbax_checkpoint: the
folders that openpi's PyTorch, lerobot and openpi's JAX write; weights, jax_names, infer_config: what these
need.
"""
