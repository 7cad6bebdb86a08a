"""The topics of controllers, one adapter for each kind; what is sent on them is decided in control/outputs.

adapter: what one is made from, and how; joint_trajectory, forward_command, gripper, servo,
base: the kinds.
"""
