"""A fleet in which things die: its robots, its processes, the network between, and what became of each.

model: the checkpoint and contracts; clock: a node whose clock is off; network: what robots and scheduler tell
each other, spoilt; robot: drivers and controllers, and what they were sent; processes: what is killed and
started again; run: the kills; leaks: what is left of them.
"""
