"""Frames and joints in: the contract, the image view, the frame pool and time alignment. No ROS, no torch at import."""
