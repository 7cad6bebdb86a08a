"""The table of faults: what stands between the robot and its nodes, the faults, and what becomes of each."""
