"""A robot's side of a fleet. client: when it asks for a chunk. execution: what it still executes. observing:
the observations that it sends, and what its chunks were made from, for recordings. questions: its text
questions."""
