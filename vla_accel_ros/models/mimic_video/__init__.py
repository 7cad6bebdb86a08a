"""mimic-video: a T5, a causal video encoder, the first blocks of Cosmos-Predict2, and an action decoder that
reads their features.

config: sizes and settings. vae, blocks, video, model: the network. statistics: units of a data set.
checkpoint: the authors' files. policy: a robot's units.
"""
