"""Programs that talk to a running robot.

operator: gives instructions and writes down what happens; listener: everything that a robot's topics say;
client_node: what is asked with, by messenger: one instruction or question, delivered for certain; and by
timelines: what nodes did lately. inspector: asks and watches, changes nothing. fleet_watcher: hears what the
nodes of a whole fleet say of themselves. sim_clock: simulated time, for all of them.
"""
