"""Decides what is sent to the controllers, and when the robot must stop.

follower: the decisions; joining: where motion continues from; watchdog: silent inputs; clock_watch: a
clock that was set; reasons: which reason to stand follows from another; joint_faults: measured joints that
leap or do not follow; image_ages: statistics.
"""
