"""`vla fleet ...`: starts a fleet, and shows a running one.

command adds the group, whose subcommands are modules that offer `register`. up starts head, replicas and
scheduler. top shows the live table; board gathers its rows from messages, and table draws it.
"""
