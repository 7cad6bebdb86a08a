"""The nodes' loops in processes without ROS, of the product's own parts, for bench/processes.py.

setting: what all processes agree on. running: how they are started, and what they do at a rate. camera,
robot, inference, trajectory: a process each; `run` of each reports when it is ready, and what it logged when
it is told to end. figures: what the logs come to. Only inference imports torch.
"""
