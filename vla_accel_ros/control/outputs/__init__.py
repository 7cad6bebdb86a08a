"""What each controller is sent, and when: below the topics, so that it is tested without ROS.

output: the interface; trajectory: joint_trajectory_controller; positions: forward_command_controller;
gripper: goals of a gripper's action; servo: MoveIt Servo; base: a mobile base; reports: what a controller
says of its execution; outputs: all controllers of a robot together.
delivery: how long a trajectory takes to reach its controller; hand_over: joins a trajectory that is sent late
without a step; on_arrival: trajectories that begin when they arrive.
"""
