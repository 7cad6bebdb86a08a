"""The package in examples/, built and installed by pip into a folder as users do, and one with mistakes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHER = """\
[vla_accel_ros.controllers]
no_module = nowhere:KIND
no_kind = other_vla:WORD
forward_command = add_controller:KIND

[vla_accel_ros.horizons]
half = other_vla:make
"""
MODULE = """\
WORD = "a word"


class Half:
    updates = samples = 0
    least = 1

    def __call__(self, made):
        return made.chunk.horizon // 2


def make(numbers):
    return Half()
"""


def install(folder: Path) -> Path:
    """Install both below `folder`, without network. Returns the folder to have on the path."""
    source, site = folder / "source", folder / "site"
    shutil.copytree(ROOT / "examples", source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (site / "other_vla.py").write_text(MODULE)
    description = site / "other_vla-2.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: other-vla\nVersion: 2.0\n")
    (description / "entry_points.txt").write_text(OTHER)
    return site


def python(program: str, *arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, in which this checkout and `path` can be imported."""
    folders = [str(ROOT), *([str(path)] if path is not None else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
