"""Fast-WAM: a video transformer reads one frame, and an action transformer attends to it in every layer.

config: sizes. umt5: the text encoder. vae: the image encoder. model: the mixture of transformers. sizes and
checkpoint: lerobot's and the authors' folders. policy: a robot's units.
"""
