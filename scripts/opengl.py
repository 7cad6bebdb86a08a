"""Provide an OpenGL that draws without a display, for the simulated robot.

Most machines have one. Otherwise root installs OSMesa (or Mesa's EGL where a distribution has dropped
OSMesa); for other users on a Debian-like machine OSMesa is unpacked into .venv/gl, with links in .venv/lib,
where .venv's Python looks for libraries. The simulator itself tests whether it works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import debian

DRAW = """
from vla_accel_ros.sim.rendering import mujoco, open_renderer
open_renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8).render()
"""
OSMESA = "libosmesa6"
EGL = ("libegl1", "libegl-mesa0", "libgl1-mesa-dri", "libopengl0")


def provide(venv: Path) -> None:
    """Make the simulator able to draw, or exit with one sentence."""
    if draws(venv):
        return
    if debian.can_install():
        for packages in ((OSMESA,), EGL):
            if debian.install(*packages) and draws(venv):
                return
    elif all(map(shutil.which, ("apt-get", "apt-cache", "dpkg", "dpkg-query"))):
        unpack(venv)
        if draws(venv):
            return
    sys.exit(
        "No OpenGL for drawing without a display was found, and none could be installed: "
        f"install OSMesa (Debian, Ubuntu: apt-get install {OSMESA}) or an EGL driver, then run this again."
    )


def draws(venv: Path) -> bool:
    """Return whether the simulator can draw a picture."""
    command = [str(venv / "bin" / "python"), "-c", DRAW]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def unpack(venv: Path) -> None:
    """Download OSMesa and its missing dependencies, and unpack them without root."""
    folder = venv / "gl"
    shutil.rmtree(folder, ignore_errors=True)
    lists, downloads = folder / "lists", folder / "downloads"
    (lists / "partial").mkdir(parents=True)
    downloads.mkdir()
    private = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder / 'cache'}"]
    _quiet(["apt-get", *private, "update"], folder)
    only = [
        f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    ]
    listed = _quiet(["apt-cache", *private, "depends", "--recurse", *only, OSMESA], folder)
    names = {line for line in listed.splitlines() if line and line[0] not in " <"}
    wanted = sorted(name for name in names if not _installed(name))
    _quiet(["apt-get", *private, "download", *wanted], downloads)
    for package in downloads.glob("*.deb"):
        _quiet(["dpkg", "-x", str(package), str(folder)], folder)
    for passing in (lists, downloads, folder / "cache"):
        shutil.rmtree(passing, ignore_errors=True)
    for library in folder.glob("usr/lib/*/*.so*"):
        link = venv / "lib" / library.name
        if not link.exists():
            link.symlink_to(library)


def _installed(name: str) -> bool:
    state = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", name], capture_output=True, text=True
    )
    return state.stdout.startswith("installed")


def _quiet(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout
