"""Programs that talk to a running robot.

operator: gives instructions and records what happens; listener: records everything on a robot's topics;
robot: commands one, as a public class;
client_node: the node of short programs, the diagnostics of a fleet, simulated time; used by messenger
(delivers one instruction or question for certain), timelines (what nodes did recently), viewer (takes what
topics have when somebody looks) and episode_marker (marks what is recorded). inspector: requests and watches,
changes nothing. surveyor: reads what a robot offers, for its contract. chunk_paths: publishes where chunks
lead, for viewers.
"""
