"""Chunks become one trajectory, and new chunks agree with it.

buffer: what of a chunk is sent; plausibility: what is checked of any; twist: chunks that move the hand.
chunk_record: a chunk as bytes. rtc: what a new chunk must agree with, in
real-time chunking; guidance: when chunks are guided; pace: how fast chunks are made and needed.
"""
