"""The node that writes bags, and the node that plays them.

node: the lifecycle node; topics: the topics to record; rosbag2_writer: a writer through rosbag2, if ROS has
it; player: plays a bag to its topics.
"""
