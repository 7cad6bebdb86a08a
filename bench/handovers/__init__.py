"""How chunks replace each other: styles of sending on a reference, and modes and masks with the policy.
Here: what is around a Motion that a bench drives (test/control/world.py)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "test" / "control"))

from world import Clock, Parameters, Process, TrajectoryLine, make_contract, make_joints

__all__ = ["Clock", "Parameters", "Process", "TrajectoryLine", "make_contract", "make_joints"]
