"""How chunks are handed over, measured: styles of sending on a reference, modes and masks on the policy."""
