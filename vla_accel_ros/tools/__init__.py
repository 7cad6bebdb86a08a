"""The `vla` command and the programs behind it."""
