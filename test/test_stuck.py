"""A test process that no longer runs Python ends, and says where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stuck

HOLDS_THE_INTERPRETER = """
import ctypes

def test_that_never_returns():
    ctypes.PyDLL(None).sleep(600)
"""


def test_a_call_that_holds_the_interpreter_ends_its_worker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HOLDS_THE_INTERPRETER)
    patience = [
        "-p",
        "stuck",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *patience],
        env={**os.environ, stuck.STUCK_S: "0.5", "PYTHONPATH": str(Path(stuck.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert "Timeout (0:00:00.500000)!" in done.stderr and "in test_that_never_returns" in done.stderr
