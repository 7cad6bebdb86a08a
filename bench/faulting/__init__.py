"""The table of faults: the relay between the robot and its nodes, the faults, and the outcome of each."""
