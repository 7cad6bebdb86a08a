"""Turns chunks into motion. Numpy only.

motion: everything that the trajectory node decides, in one object; robot: its joints, and whether it is at
rest; contract: the shape of what it is given; holds: why the robot is held; publishers: a second publisher;
lateness: why inputs are late; report: what becomes of chunks.
orders/ is what people and tasks ask of it; outputs/ is what each controller is sent; chunking/ joins chunks
into one trajectory; limits/ enforces joint limits on every path; following/ decides what is sent and when the
robot must stop; force/ reacts to contact; kinematics/ makes joint targets of rows of hands and velocities;
teleop/ lets a person take over.
trajectory: a joint trajectory, sampled as its controller samples it; command_stream: a trajectory as
positions or velocities at a fixed rate; horizon: how many leading actions of a chunk may be executed
(horizon_rules: the signals for it); by_task: parameters that say another thing for some tasks; state_file:
what a node must still know after its process died.
"""
