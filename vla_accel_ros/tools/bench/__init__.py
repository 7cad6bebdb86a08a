"""`vla bench`: what is measured of a checkpoint of the user's own.

command: the subcommand; solvers: errors and times of ways to integrate the flow; observations: what they are
measured on, of a bag or of the simulated arm.
"""
