"""The simulated robot of the demo and the tests. No ROS.

robot: MuJoCo physics and cameras; world: what is true at one instant; layout: random scenes; tasks: the
instructions; expert and demonstrations: what to do, and training data of it; kinematics: of the arm;
controller and executed: what ros2_controllers make of a trajectory; rendering: how MuJoCo draws.
"""
