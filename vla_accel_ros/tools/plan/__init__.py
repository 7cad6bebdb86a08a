"""`vla plan`: command holds its options, text formats a plan."""
