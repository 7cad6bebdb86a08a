"""Keys and values: where they are, and whose.

pool: slots of prefixes, counted, and pages of what continues them; prefixes: which frames are in the slots.
"""
