"""`vla fleet ...`: what is done with a running fleet.

command: the group; each of its subcommands is one module that offers `register`. top: the live table; board:
what it shows, gathered from messages; table: how it is drawn.
"""
