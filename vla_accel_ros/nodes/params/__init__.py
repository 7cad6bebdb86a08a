"""Every parameter of every node, as data. No ROS.

parameter: what a parameter is; inference, fleet (of a robot in one), fleet_scheduler, trajectory, cameras,
recorder: those of the nodes; tables: all of them by the node's name; parameter_file: what a file says for
one node, before there is a node.
"""
