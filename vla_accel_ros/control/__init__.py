"""Turns chunks into motion. Numpy only.

motion: everything that the trajectory node decides, in one object; robot: its joints, and whether it is at
rest; contract: the shape of what it is given; holds: why the robot is held; operator: what services do;
orders: what is asked of it, from call to answer; runs: goals of run_policy; homing, lending: a move home, the
robot in other hands; publishers: a second publisher; lateness: why inputs are late; report: what becomes of
chunks.
outputs/ is what each controller is sent; chunking/ joins chunks into one trajectory; limits/ enforces joint
limits on every path; following/ decides what is sent and when the robot must stop; force/ reacts to contact;
kinematics/ makes joint targets of what rows of hands and velocities mean; teleop/ lets a
person take over.
trajectory: a joint trajectory, sampled as its controller samples it; command_stream: a trajectory as
positions or velocities at a fixed rate; delivery: how long a trajectory takes to reach its controller;
hand_over: joins a trajectory that is sent late without a step; on_arrival: trajectories that begin when they
arrive; moves: motion from rest to rest; horizon: how many leading actions of a chunk may be executed
(horizon_rules: the signals for it); state_file: what a node must still know after its process died.
"""
