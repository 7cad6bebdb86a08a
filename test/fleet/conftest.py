"""The simulated engine of the engine's own tests, for those that compare with it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engine"))
