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


def test_what_it_is_converted_to_is_loaded_and_folded(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "load.py"), "--small", "--folder", str(tmp_path)]
    command += ["--model", "pi05", "--converted"]
    environment = {"PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    published, converted = ran.stdout.splitlines()
    assert published.startswith("pi05 ") and ", folded in " in published and " or read in " not in published
    assert converted.startswith("pi05 converted") and " or read in " in converted
    assert converted.endswith("actions [50, 7] finite")
    assert not list(tmp_path.iterdir())
