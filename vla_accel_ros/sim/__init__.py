"""The simulated robot of the demo and the tests. No ROS.

robot: MuJoCo physics and cameras; world: the truth at one instant; layout: random scenes; tasks: the
instructions; kinematics: of the arm; controller: what ros2_controllers do with a trajectory; rendering: how
MuJoCo draws.
"""
