"""`vla fleet`: the scheduler of a fleet with its replicas, on one machine."""
