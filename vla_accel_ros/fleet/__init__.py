"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`), who is served next (`policies`), and all of it in simulated time (`simulator`).
Nothing here imports torch or ROS."""
