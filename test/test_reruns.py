"""A test that passes only when it is run again is listed, and fails the run with RACES=fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import reruns

FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.flaky(reruns=1)
def test_flaky():
    count = Path(__file__).with_name("count")
    first = not count.exists()
    count.touch()
    assert not first

def test_steady():
    pass
"""


@pytest.mark.parametrize(("workers", "races", "status"), [("1", "fail", 1), ("0", "", 0)])
def test_rerun_is_listed_and_fails_on_request(tmp_path: Path, workers: str, races: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY)
    options = ["-p", "reruns", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", workers, str(tmp_path)],
        env={**os.environ, "RACES": races, "PYTHONPATH": str(Path(reruns.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == status, result.stdout
    assert "RACE test_it.py::test_flaky" in result.stdout and "test_steady" not in result.stdout
