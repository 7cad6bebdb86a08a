"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`), whose chunk is computed next (`scheduler`, `records`), how many robots fit
(`admission`), and what computes (`replicas`). Only replicas.local imports torch; nothing here imports ROS."""
