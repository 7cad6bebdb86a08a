"""Memory for keys and values (KV cache).

pool: reference-counted slots of prefixes, and the frames in them. results: what else is kept of these. pages:
paged memory of what continues a prefix.
"""
