"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`), a robot's side of it (`client`, `execution`, `observing`), who is served next
(`policies`), how many leading actions of a chunk may be executed before another comes (`horizon`), and all of
it in simulated time (`simulator`). Nothing here imports torch or ROS."""
