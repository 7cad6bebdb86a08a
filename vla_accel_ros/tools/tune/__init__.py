"""`vla tune`: candidates, each kernel by itself to time them, and what whole layers decide."""
