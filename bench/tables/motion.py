"""Tables of motion."""
