"""What every program needs that starts nodes and drives robots: the demos, and the benches that start nodes.

graph: a ROS graph of their own; processes: nodes as processes, which leave nothing behind; driven: waiting
for robots whose nodes may die meanwhile; ending: by a signal.
"""
