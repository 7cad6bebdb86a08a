"""`vla compare`: a checkpoint's actions by this package and by the public code that it belongs to.

command: the subcommand. peer: the program that runs in the environment of the public code and imports
nothing of this package.
"""
