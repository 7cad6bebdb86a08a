"""Joint limits on every path.

joint_limits: what each joint may do; trajectory_limits: the limits enforced on a trajectory; limiter: one
step of the second-order limiter; limited_tracking: many steps at once; braking: the shortest stop.
"""
