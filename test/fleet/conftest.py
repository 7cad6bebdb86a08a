"""The simulated engine of the engine's own tests, for those that compare with it."""

from __future__ import annotations

import sys
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "engine"
sys.path += [str(ENGINE), str(ENGINE / "rules")]
