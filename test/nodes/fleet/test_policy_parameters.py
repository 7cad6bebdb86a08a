"""Options of fleet policies are parameters of the node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, node_environment

PROGRAM = Path(__file__).with_name("policy_parameters.py")


@pytest.mark.parametrize(
    ("policy", "parameter", "values"),
    [
        ("kairos", "kairos_buckets", {"/new": "1", "/old": "20"}),
        ("kairos", "kairos_ageing_s", {"/new": "1000.0", "/old": "5.0"}),
        ("aged_srpt", "age_exponent", {"/new": "0.0", "/old": "4.0"}),
    ],
)
def test_a_parameter_of_the_node_reaches_its_policy(
    ros_domain: int, tmp_path: Path, policy: str, parameter: str, values: dict[str, str]
) -> None:
    paths = [ROOT, ROOT / "test" / "fleet"]
    environment = {**node_environment(tmp_path), "PYTHONPATH": ":".join(map(str, paths))}
    for first, value in values.items():
        words = ["--ros-args", "-p", f"policy:={policy}", "-p", f"{parameter}:={value}"]
        command = [sys.executable, str(PROGRAM), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.split()[-1] == first
