"""Many robots, one engine or several. protocol: what robots and scheduler tell each other; task: what is
known of each robot's task; client: a robot's side, when it asks and which answers it takes; execution: what
it still executes; observing: what it sends. Nothing here imports torch or ROS."""
