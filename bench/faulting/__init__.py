"""The table of faults. relay: between the robot and its nodes; robot: the nodes that run; making, launched:
how faults are made; cases: all of them; measure and table: the outcome of each."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "test" / "control"))  # executed
