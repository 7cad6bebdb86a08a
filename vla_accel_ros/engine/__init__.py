"""When it runs: the KV pool, the loops and the Engine facade."""
