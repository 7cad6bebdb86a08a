"""Keys and values: where they are, and whose.

pool: slots of prefixes, counted; prefixes: which frames are in them; store: the resumable states of answers
over them, and pages for the tails of these.
"""
