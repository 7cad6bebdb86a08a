"""Makes what is in bench/ importable, as it is for its scripts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
