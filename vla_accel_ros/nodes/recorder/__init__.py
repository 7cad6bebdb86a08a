"""The node that writes bags, and the one that plays them.

node: the lifecycle node; topics: what of a robot is recorded;
rosbag2_writer: a writer through rosbag2, where ROS brings it; player: plays a bag to its topics.
"""
