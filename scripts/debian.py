"""System packages on Debian-like machines. Only root installs them; other users are told what to install.

Never uses sudo: a setup must not stop to ask for a password.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def can_install() -> bool:
    """Return whether this process may install packages with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str) -> bool:
    """Install packages with apt-get, after updating the package lists if needed. Returns whether it
    worked."""
    command = ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *packages]
    return _quiet(command) or (_quiet(["apt-get", "-qq", "update"]) and _quiet(command))


def _quiet(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return (
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True).returncode
        == 0
    )
