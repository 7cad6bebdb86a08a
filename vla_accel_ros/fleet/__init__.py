"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`), a robot's side of it (`client`, `execution`, `observing`), whose chunk is
computed next (`scheduler`, `settings`, `policies`, `queue`, `dispatch`, `hedging`, `completion`, `records`),
who is served (`members`) and how many fit (`admission`, `forecast`, `punctuality`), what computes
(`replicas`), how many leading actions of a chunk may be executed before another comes (`horizon`), and all of
it in simulated time (`simulator`). Only replicas.local imports torch; nothing here imports ROS."""
