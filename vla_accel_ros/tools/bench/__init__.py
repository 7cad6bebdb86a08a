"""`vla bench`: measurements of a GPU, or of a user's checkpoint.

command: the subcommands. device: measures a GPU. kernels: each kernel against its reference. stages: times of
the engine's stages. planned: the plan beside them. subjects: models with random weights. tiny: sizes to try
it with. solvers: errors and times of flow solvers. observations: from a bag or the simulated arm.
"""
