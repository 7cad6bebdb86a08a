"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`). Nothing here imports torch or ROS."""
