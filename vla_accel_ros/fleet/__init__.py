"""Many robots, one engine or several: what is known of each robot's task (`task`), what robots and scheduler
tell each other (`protocol`), a robot's side of it (`robot`), who is served next and by whom (`serving`), in
which order (`policies`), how many robots fit (`admission`), what computes (`replicas`), how many leading
actions of a chunk may be executed before another comes (`horizon`, and by which signals of doubt:
`horizon_policies`), and all of it in simulated time (`simulator`). Only replicas.local imports torch; nothing
here imports ROS."""
