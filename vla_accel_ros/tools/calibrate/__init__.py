"""`vla calibrate`: what products of int8 rows need to know of a checkpoint's activations.

command: arguments; seen: the plain model on observations; dataset: observations of a LeRobot dataset.
"""
