"""`vla plan`: command and the text of a plan."""
