"""The node between chunks and controllers: it converts messages for control.Motion, and calls it.

node: the lifecycle node; moves: the action of a controller; runs: the action run_policy; manager: the
controller manager; causes: what the graph shows; force and force_sources: the thread of the force sensors;
reports: its topic `motion` and its diagnostics.
"""
