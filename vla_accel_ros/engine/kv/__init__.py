"""Keys and values: where they are, and whose.

pool: slots of prefixes, counted; prefixes: which frames are in them; pages: room for the tails of answers;
store: the resumable states of answers over both.
"""
