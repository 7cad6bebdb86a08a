"""A workspace built by colcon has `vla` on its PATH once it is sourced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path(sys.prefix)
COLCON = PREFIX / "bin" / "colcon"


@pytest.mark.skipif(not COLCON.exists(), reason="colcon is not in this environment")
@pytest.mark.parametrize("link", [[], ["--symlink-install"]], ids=["copied", "linked"])
def test_vla_is_a_command_once_the_workspace_is_sourced(tmp_path: Path, link: list[str]) -> None:
    here = {
        "AMENT_PREFIX_PATH": str(PREFIX),
        "CMAKE_PREFIX_PATH": str(PREFIX),
        "COLCON_HOME": str(tmp_path / "home"),
        "PATH": f"{PREFIX / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    build: list[str | Path] = [
        COLCON,
        "build",
        "--base-paths",
        ROOT,
        "--packages-select",
        "vla_accel_ros",
        *link,
    ]
    subprocess.run(build, cwd=tmp_path, env={**os.environ, **here}, check=True, capture_output=True)
    command = "source install/setup.bash && command -v vla && vla --help"
    told = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{tmp_path}/install/vla_accel_ros/bin/vla\nusage: vla")
