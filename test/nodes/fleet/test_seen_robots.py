"""A robot is admitted, slowed or refused by how those that are served ask, and told why: over real topics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, node_environment

TEST = ROOT / "test"
PROGRAM = Path(__file__).with_name("seen_robots.py")
HELPERS = TEST / "fleet", TEST / "engine", TEST / "engine" / "policies", TEST


@pytest.mark.parametrize("scenario", ["refused", "admitted", "slowed"])
def test_a_robot_is_judged_by_how_the_others_ask(ros_domain: int, tmp_path: Path, scenario: str) -> None:
    environment = {**node_environment(tmp_path), "PYTHONPATH": ":".join(map(str, (ROOT, *HELPERS)))}
    command = [sys.executable, str(PROGRAM), scenario]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
