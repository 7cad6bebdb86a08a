"""What families do to observations and actions.

conventions: pixels, words and numbers of pi0 and pi0.5, as openpi and lerobot have them;
lerobot_processors and norm_stats: statistics as either saves them. resize: Pillow's resizes; pixels: all of
it as data for one kernel.
"""
