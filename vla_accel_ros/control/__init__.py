"""Turns chunks into motion. Numpy only.

chunking/ joins chunks into one trajectory; limits/ enforces joint limits on every path; following/ decides
what is sent and when the robot must stop; force/ reacts to contact. trajectory: a joint trajectory, sampled
as its controller samples it; command_stream: a trajectory as positions or velocities at a fixed rate;
delivery: how long a trajectory takes to reach its controller; hand_over: joins a trajectory that is sent late
without a step; on_arrival: trajectories that begin when they arrive; moves: motion from rest to rest;
horizon: how many leading actions of a chunk may be executed (horizon_rules: the signals for it);
state_file: what a node must still know after its process died.
"""
