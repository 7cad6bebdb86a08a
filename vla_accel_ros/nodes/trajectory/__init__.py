"""The node between chunks and controllers.

node: the lifecycle node; chunk_source: where its chunks come from; hold: brings the robot to rest for a
reason and keeps it there; home and moves: discrete moves; release: the robot in other hands and back;
publishers: detects a second publisher; causes: finds who is missing at the other end of its topics; force and
force_sources: the thread of the force sensors; reports: its topic `motion` and its diagnostics.
"""
