"""How chunks replace each other: styles of sending on a reference, and modes and masks with the policy."""
