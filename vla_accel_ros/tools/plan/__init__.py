"""`vla plan`: command holds its options, goal says what a goal sets, text formats a plan."""
