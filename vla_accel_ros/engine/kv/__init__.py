"""Keys and values: where they are, and whose.

pool: slots of prefixes, counted, and which frames are in them; pages: of what continues a prefix.
"""
