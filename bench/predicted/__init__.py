"""A plan against what was measured. recorded: figures that are there already, of bench/results and of others.
stages: the engine's stages on the GPU of this machine.
"""
