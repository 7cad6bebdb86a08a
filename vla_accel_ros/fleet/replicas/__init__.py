"""What computes a fleet's chunks. replica: what a scheduler asks of one; local: an engine of this process,
the only one that imports torch; decoding: what it is given, from what travelled; ray: an engine in a Ray
actor, kept alive; ray_options: where, and how long calls may take; ray_server: what runs there; ray_data:
what goes there and comes back, checked; ray_cluster: where the actors run. Ray is imported by who uses it."""
