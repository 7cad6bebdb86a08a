"""Pre- and post-processing of the families.

conventions: pixels, prompts and normalisation of pi0 and pi0.5, as openpi and lerobot do it.
lerobot_processors, norm_stats: statistics as either saves them. ranges: numbers by a range. resize: Pillow's
resizes. pixels: all resizes as data for one kernel. checks: what every family refuses of an observation.
"""
