"""Joins chunks into one trajectory, and makes new chunks agree with it.

source: whence chunks come; buffer: decides which part of a chunk is sent; crossing: how it joins the old
motion; tempo: how fast its path is driven; fastest: as fast as the limits allow; plausibility: checks every
chunk;
twist: chunks of hand velocities; chunk_record: a chunk as bytes; rtc: what a new chunk must agree with
(real-time chunking); guidance: when chunks are guided; pace: how fast chunks are made, and how fast they are
needed.
"""
