"""A test that passes only when it is run again is listed, and fails the run unless it is known."""

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


@pytest.mark.parametrize(("workers", "known", "status"), [("1", "test_flaky", 0), ("0", "test_other", 1)])
def test_rerun_is_listed_and_fails_unless_known(
    tmp_path: Path, workers: str, known: str, status: int
) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY)
    (tmp_path / "conftest.py").write_text(
        f"import reruns\n\nreruns.KNOWN = {{'test_it.py::{known}': 'since'}}\n"
    )
    options = ["-p", "reruns", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", workers, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(reruns.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == status, result.stdout
    assert "RACE test_it.py::test_flaky" in result.stdout and "test_steady" not in result.stdout


def test_known_races_are_tests_that_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    for name in reruns.KNOWN:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (root / file).read_text()
