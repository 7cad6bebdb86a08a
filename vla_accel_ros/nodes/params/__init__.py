"""Every parameter of every node, as data. No ROS.

parameter: what a parameter is; inference, trajectory, cameras, recorder, fleet: those of the nodes;
tables: all of them by the node's name.
"""
