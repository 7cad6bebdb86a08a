"""The real nodes on a robot that is not there, for bench/nodes_gpu.py.

robot: its cameras, joints and controller, over ROS 2, in processes. running: the nodes as processes, and who
waits for them. figures: what their timelines come to. shares: processor time of a process, by what its
threads are for.
"""
