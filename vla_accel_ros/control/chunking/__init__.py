"""Chunks become one trajectory, and new chunks agree with it.

buffer: what of a chunk is sent; bounds: how much motion a chunk may ask for; twist: chunks that move the
hand. rtc: real-time chunking, what a new chunk must agree with; guidance: when chunks are guided; agreement:
what a message says about it; pace: how fast chunks are made and needed.
"""
