"""How chunks replace each other: styles of sending on a reference, and modes and masks with the policy."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "test" / "control"))  # what is around a Motion: world.py
