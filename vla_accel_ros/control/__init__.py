"""From chunks to motion. Numpy only.

chunking/: chunks become one trajectory, and new chunks agree with it; limits/: joint limits on every path;
following/: what is sent, and when the robot must stop; force/: contacts. trajectory: a joint trajectory and
how a controller samples it; command_stream: a trajectory as positions or velocities at a rate; delivery: how
long a trajectory takes to its controller; hand_over: one that is sent late, joined without a step;
on_arrival: those that begin when they arrive; moves: one motion from rest to rest; state_file: what a node
must know after its process died.
"""
