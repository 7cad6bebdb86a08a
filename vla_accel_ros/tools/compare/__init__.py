"""`vla compare`: a checkpoint's actions by this package and by the public code that it belongs to.

command: the subcommand. errors: how far two sets of chunks are apart, and whether that is the same. peer: the
program that runs in the environment of the public code and imports nothing of this package.
"""
