"""What is sent to the controllers, and when the robot must stop.

follower: the decisions; watchdog: inputs that have gone silent; following_error: joints that are not where
they are commanded; joint_jumps: measured joints that jump; plausibility: chunks that no robot could mean.
"""
