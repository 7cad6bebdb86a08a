"""A camera as a node. node: the process; output: what it publishes for each frame."""
