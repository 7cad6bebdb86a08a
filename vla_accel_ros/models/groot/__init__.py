"""GR00T N1.7 and N1.5: a diffusion transformer that cross-attends to a vision-language model's features.

model: the network; head: its own part of it. config: its sizes. units: states and actions of an embodiment.
pixels, prompt: images and words. policy: pre- and post-processing. checkpoint: published folders, of which
assets, sizes, embodiment and statistics read a part each.
"""
