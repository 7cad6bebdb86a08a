"""Input of camera frames, joint states and forces. No ROS, no torch.

cameras/: pictures from a message, a device or shared memory into a frame pool. joints: the last seconds of
every joint; transforms: poses of hands by tf. ingest: observations of a robot from streams that are not
synchronised. inputs: everything that a node `inference` knows and says of its inputs; subtasks: the next
subtask of a task. segment: named shared memory that is removed with its writer; slot: the newest value of
something small in it; chunk_slot: chunks in a slot; force_slot: samples of a force sensor in a slot. survey:
what a robot offers, for its contract. arrivals: rate, age and losses of streams, and what a node reports
about its inputs; trained: whether inputs look like those in training.
"""
