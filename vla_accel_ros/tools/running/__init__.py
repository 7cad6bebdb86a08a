"""For programs that start nodes and drive robots: the demos, and the benches that start nodes.

graph enters a private ROS graph. messages builds the messages of an installed wheel. processes runs nodes as
processes, leaves nothing behind, and turns signals into one KeyboardInterrupt. driven waits for robots whose
nodes may die.
"""
