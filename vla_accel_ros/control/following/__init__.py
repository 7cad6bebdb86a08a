"""What is sent to the controllers, and when the robot must stop.

follower: the decisions; joining: where motion goes on from; watchdog: inputs that have gone silent, and a
clock that was set; joint_faults: measured joints that leap, or do not follow; image_ages: statistics.
"""
