"""Bags in and out, without ROS.

reader: reads a rosbag2 of MCAP files, within the bounds of bounds; roles: what a recorded topic is when it is
played again. topic: a topic as a bag has it, and the interface of a writer; mcap_writer: writes one MCAP
file; background_writer: a bounded queue and the thread that empties it into a writer.
"""
