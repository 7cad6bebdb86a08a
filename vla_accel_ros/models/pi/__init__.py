"""pi0 and pi0.5.

model: the network, with openpi's parameter names. folded, folding: the same network with fewer, larger
products. checkpoint, lerobot_checkpoint,
orbax_checkpoint: folders written by openpi's PyTorch, lerobot and openpi's JAX code. training: the settings
of its training that an openpi folder lacks. weights, jax_names, infer_config: helpers of these.
"""
