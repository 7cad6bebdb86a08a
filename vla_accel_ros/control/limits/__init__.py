"""Joint limits on every path.

joint_limits: what each joint may do, and the shortest stop; limiter: steps of the second-order limiter;
trajectory_limits: the limits enforced on a trajectory.
"""
