"""bench/load.py with small sizes: published layouts are written, loaded within the bound, and act."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_small_checkpoint_is_written_loaded_and_acts(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "load.py"), "--small", "--folder", str(tmp_path)]
    command += ["--model", "openvla"]
    environment = {"PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    assert line.startswith("openvla") and "in 3 file(s)" in line and line.endswith("actions [1, 7] finite")
    assert not list(tmp_path.iterdir())
