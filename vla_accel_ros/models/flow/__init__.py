"""Flow matching: from noise to a chunk of actions.

sampling: integration; solver: from one velocity to the next x; rtc: guidance of a chunk by the part of the
old one that will be executed anyway; committed: a chunk that begins with actions that are given; noise: what
a chunk begins with.
"""
