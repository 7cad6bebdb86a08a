"""The real nodes with a simulated robot, for bench/nodes_gpu.py.

robot: its cameras, joints and controller, over ROS 2, in processes; contract: its contract; spawned: the
processes. running: starts the nodes as processes and waits for them. figures: evaluates their timelines.
shares: CPU time of a process, by purpose of its threads.
"""
