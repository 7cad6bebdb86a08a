"""A plan against what was measured. recorded: figures that are there already, in bench/results and published by
others. stages: the engine's stages on the GPU of this machine.
"""
