"""Chunks become one trajectory, and new chunks agree with it.

buffer: what of a chunk is sent; plausibility: chunks that nobody should follow; twist: chunks that move the
hand. rtc: real-time chunking, what a new chunk must agree with; guidance: when chunks are guided; pace: how
fast chunks are made and needed.
"""
