"""`vla fleet-demo`: simulated robots that one scheduler serves, some of which are killed meanwhile.

command: the subcommand; plan: what the user asked for, and each robot's tasks; fleet: the processes, which
are started again when they end; robot: one robot, its tasks and what became of them; faults: what is killed,
and how long until motion goes on; run: the whole; summary: its figures.
"""
