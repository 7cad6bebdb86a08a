"""Tables of engine."""
