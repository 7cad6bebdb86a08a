"""Reads and writes bags, without ROS.

reader: reads a rosbag2 of MCAP files, within the limits of bounds; jumps: where its clock was set; roles:
what a recorded topic is when it is played back; marks: episodes that a person marks; robots: whose it is, and
what it is by the robot's contract. topic: a topic in a bag; mcap_writer: writes
one MCAP file; background_writer: a bounded queue, and the thread that writes its messages.
"""
