"""System packages on machines of the Debian family: root installs them, others are told what to install.

Never sudo: a set-up that stops to ask for a password is no set-up.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def can_install() -> bool:
    """Whether this process may install packages with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str) -> bool:
    """Install packages with apt-get, fetching the package lists if need be; whether it worked."""
    command = ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *packages]
    return _quiet(command) or (_quiet(["apt-get", "-qq", "update"]) and _quiet(command))


def _quiet(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return (
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True).returncode
        == 0
    )
