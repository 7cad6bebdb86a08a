"""Memory for keys and values (KV cache).

prefixes: reference-counted slots, and the frames in them. pool: their memory. results: what else is kept of
these. pages: paged memory of what continues a prefix.
"""
