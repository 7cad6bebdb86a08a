"""`vla bench`: what is measured of a GPU, or of a checkpoint of the user's own.

command: the subcommands. device: one of them, with kernels (each against its reference), stages (their
times), planned (the plan beside them), memory (peaks of an allocator, or counted), subjects, policies and
tiny (models of random weights). solvers: errors and times of ways to integrate the flow, on observations of a
bag or of the simulated arm.
"""
