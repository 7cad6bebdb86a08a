"""What families do to observations and actions.

openpi: openpi's pre- and post-processing; conventions: what openpi and lerobot do differently;
lerobot_processors and norm_stats: statistics as either saves them. resize: Pillow's resizes; pixels: all of
it as data for one kernel.
"""
