"""A workspace with this package, built by plain colcon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAME = "vla_accel_ros"
ROOT = Path(__file__).resolve().parents[1]


def built(folder: Path, *options: str) -> Path:
    """The package, built and installed in the folder on top of what is sourced, or of this environment."""
    prefix = os.environ.get("AMENT_PREFIX_PATH") or sys.prefix
    done = colcon(folder, prefix, "build", "--base-paths", str(ROOT), "--packages-select", NAME, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 package finished" in done.stderr + done.stdout
    return folder


def colcon(folder: Path, prefix: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run colcon in a folder, with this prefix sourced."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "AMENT_PREFIX_PATH": prefix,
        "CMAKE_PREFIX_PATH": prefix,
        "COLCON_HOME": str(folder / "home"),
    }
    executable = shutil.which("colcon", path=path)
    assert executable is not None
    command = [executable, "--log-base", "log", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def says_how_it_is_used(workspace: Path) -> None:
    """`vla` is on PATH in a shell that has sourced nothing but the workspace."""
    command = "source install/setup.bash && command -v vla && vla --help"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=workspace,
        env={"HOME": str(workspace), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{workspace}/install/vla_accel_ros/bin/vla\nusage: vla")
