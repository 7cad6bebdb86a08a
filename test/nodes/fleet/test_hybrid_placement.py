"""Edge first, the cloud where it answers sooner, and a scheduler that never waits: over real topics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, node_environment

TEST = ROOT / "test"
PROGRAM = Path(__file__).with_name("hybrid_placement.py")


@pytest.mark.parametrize("scenario", ["queue", "trace", "forecast"])
def test_requests_go_where_they_are_answered_soonest_and_nobody_waits_for_a_forecast(
    ros_domain: int, tmp_path: Path, scenario: str
) -> None:
    paths = [ROOT, TEST / "fleet", TEST]
    environment = {**node_environment(tmp_path), "PYTHONPATH": ":".join(map(str, paths))}
    command = [sys.executable, str(PROGRAM), scenario]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
