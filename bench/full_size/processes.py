"""Processes that run a module of bench/."""

from __future__ import annotations

import os
from pathlib import Path

BENCH = Path(__file__).parents[1]


def environment_of_bench() -> dict[str, str]:
    """Ours, in which the packages of bench/ are found, too."""
    path = filter(None, (str(BENCH), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
