"""`vla replay`: runs a recorded run through the engine again and compares it bit by bit.

command is the subcommand. moments reads the observations of a bag, with what the engine made of each. again
computes them once more. report words the result.
"""
