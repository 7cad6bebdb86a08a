"""Frames and joints in. No ROS, no torch.

cameras/: pictures, from a message, a device or shared memory to a frame pool. joints: the last seconds of
every joint; ingest: all of it together, and one observation from streams that know nothing of each other.
segment: named shared memory that outlives no writer; slot: the newest value of something small in it;
chunk_slot: chunks that another process writes there;
force_slot: samples of a force sensor in a slot. arrivals: how fast streams come, and what a node tells of
what it received.
"""
