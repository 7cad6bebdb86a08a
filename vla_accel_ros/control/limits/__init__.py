"""Joint limits on every path.

joint_limits: limits of each joint, and the shortest stop; limiter: single steps of the second-order limiter;
trajectory_limits: enforces the limits on a trajectory.
"""
