"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`), whose chunk is computed next (`scheduler`, `records`), how many robots fit
(`admission`), what computes (`replicas`), and how many leading actions of a chunk may be executed before
another comes (`horizon`). Only replicas.local imports torch; nothing here imports ROS."""
