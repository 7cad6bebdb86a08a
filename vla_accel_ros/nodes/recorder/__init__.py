"""The node that writes bags, and the node that plays them.

node: the lifecycle node; topics: the topics to record; player: plays a bag to its topics.
"""
