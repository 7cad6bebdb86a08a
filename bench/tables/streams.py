"""Tables of streams."""
