"""The wheel, installed into an empty environment, runs `vla` and an example. Slow: it is built and installed.

Its environment has no packages of its own but the wheel; what the wheel depends on is taken from here, since
tests fetch nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd="/", env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what git has, as a release is."""
    folder = tmp_path_factory.mktemp("wheel")
    run("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", folder / "source")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", folder, folder / "source")
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_has_the_version_of_the_manifest(wheel: Path) -> None:
    version = ElementTree.parse(ROOT / "package.xml").findtext("version")
    assert wheel.name.startswith(f"vla_accel_ros-{version}-")


def test_wheel_has_what_the_demo_builds_and_starts(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shared = {name.partition("/share/vla_accel_ros/")[2] for name in names}
    assert {
        "msg/package.xml",
        "scripts/environment.py",
        "config/params.yaml",
        "launch/demo.launch.py",
    } <= shared
    assert "vla_accel_ros/sim/policy/model.safetensors" in names


def test_installed_wheel_runs_vla_and_an_example(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    pip = (sys.executable, "-m", "pip", "--python", tmp_path / "bin" / "python", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel)
    (site / "here.pth").write_text(sysconfig.get_paths()["purelib"])
    assert "vla demo" in run(tmp_path / "bin" / "vla", "--help")
    printed = run(tmp_path / "bin" / "python", ROOT / "examples" / "act.py", OMP_NUM_THREADS="1")
    assert "actions, one every" in printed
    place = "import vla_accel_ros; print(vla_accel_ros.__file__)"
    assert str(tmp_path) in run(tmp_path / "bin" / "python", "-c", place)
