"""Many robots share one or several engines. task: what a scheduler knows of each robot's task. protocol:
messages between robots and scheduler. robot: a robot's side. serving: the scheduler. policies: the order in
which robots are served. admission: how many robots fit. replicas: the engines that compute. horizon: how many
leading actions of a chunk may be executed (horizon_policies: the signals for it). simulator: a fleet in
simulated time. Only replicas.local imports torch; nothing here imports ROS."""
