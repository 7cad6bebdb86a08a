"""`vla calibrate`: statistics of a checkpoint's activations for products of 8-bit rows.

command: arguments. seen: the plain model on observations. dataset: observations of a LeRobot dataset.
"""
