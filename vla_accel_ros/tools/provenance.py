"""Machine, versions and date of a measurement, for every published JSON."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "mujoco", "ros-rclpy", "triton", "transformers")


def provenance() -> dict[str, Any]:
    """Return the keys `machine`, `versions` and `date` (UTC)."""
    return {
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
    }


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the system and, if there is one, the GPU."""
    facts: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    try:
        import torch

        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name(0)
    except ImportError:
        pass
    return facts


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and those of PACKAGES that are installed."""
    installed = {"python": platform.python_version()}
    for package in ("vla_accel_ros", *PACKAGES):
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
