"""A fleet in which processes are killed: its robots, its processes, its network, and what happened to each.

model: the checkpoint and contracts. clock: a node with a wrong clock. network: disturbed messages between
robots and scheduler. robot: drivers and controllers, and what they received. processes: kills and restarts.
run: the sequence of kills. leaks: what remains afterwards.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "test" / "control"))  # executed
