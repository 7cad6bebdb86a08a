"""Every parameter of every node, as data. No ROS.

parameter: the definition of a parameter; engine: those of a model and its engine; inference, with fleet (of a
robot in one) and server (of a robot with one), fleet_scheduler, trajectory, cameras, recorder: those of the
nodes; tables: all of them by the node's name; parameter_file: reads a node's parameters from a file before
there is a node; over_file: those that a launch argument may set.
"""
