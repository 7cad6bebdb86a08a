"""`vla fleet ...`: start a fleet, and look at a running one.

command: the group; each of its subcommands is one module that offers `register`. up: head, replicas and
scheduler. top: the live table; board: what it shows, gathered from messages; table: how it is drawn.
"""
