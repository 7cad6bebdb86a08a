"""Frames and joints in: the contract, the image view, the frame pool, time alignment. No ROS, no torch."""
