"""X-VLA: Florence-2's image and text encoders, and a transformer with soft prompts that predicts clean
actions.

config: sizes. grippers: action modes. davit: the image encoder. model: the network. sizes and checkpoint:
lerobot's folders. policy: a robot's units.
"""
