"""Many robots share one or several engines. task: what a scheduler knows of each robot's task. protocol:
messages between robots and scheduler. robot: a robot's side. serving: the scheduler. rules: the order in
which robots are served. admission: how many robots fit. replicas: the engines that compute. simulator: a
fleet in simulated time. Only replicas.local imports torch; nothing here imports ROS."""
