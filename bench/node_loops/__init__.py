"""The nodes' loops in processes without ROS, made from the product's own parts, for bench/processes.py.

setting: what all processes agree on. running: starts processes and runs loops at a rate. camera, robot,
inference, trajectory: one process each; its `run` reports when it is ready, and returns its log at the end.
figures: evaluates the logs. Only inference imports torch.
"""
