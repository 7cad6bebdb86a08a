"""The package in data/tiny_vla, built and installed by pip into a folder, as its users would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def install(folder: Path) -> Path:
    """Install it below `folder`, without network. Returns the folder to have on the path."""
    source, site = folder / "source", folder / "site"
    shutil.copytree(HERE / "data" / "tiny_vla", source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def python(program: str, *arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, in which this checkout and `path` can be imported."""
    folders = [str(HERE.parent), *([str(path)] if path is not None else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
