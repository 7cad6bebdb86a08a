"""Vision-Language-Action models in real time on one GPU, for ROS 2."""
