"""Programs that talk to a running robot.

operator: gives instructions and writes down what happens; listener: everything that a robot's topics say;
messenger: one instruction or question, delivered for certain; inspector: asks and watches, changes nothing;
timelines: what nodes did lately.
"""
