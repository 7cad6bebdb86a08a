"""The node between chunks and controllers.

node: the lifecycle node; chunk_source: whence it has its chunks; hold: brings the robot to rest for a reason
and keeps it there; home and moves: discrete moves; release: the robot in other hands and back; publishers:
others that publish what only one should; force and force_sources: the thread of the force sensors; reports:
its topic `motion` and its diagnostics.
"""
