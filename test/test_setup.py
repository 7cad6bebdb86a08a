"""The set-up of make: stages are done once, and the caller's ROS does not reach into .venv."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """scripts/environment.py, working on an empty folder."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import environment

    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "STAMPS", tmp_path / "stamps")
    return environment


def test_a_stage_is_done_again_only_when_its_inputs_change(script: ModuleType) -> None:
    done = []
    for stamp in ("one", "one", "two"):
        script.stage("messages", "building", stamp, lambda stamp=stamp: done.append(stamp))
    assert done == ["one", "two"]


def test_a_distribution_without_wheels_is_refused_with_those_that_have_them() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "environment.py"), "--distro", "foxy"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode and all(name in refused.stderr for name in ("foxy", "kilted", "jazzy"))


def test_the_default_distribution_gets_updates_today_and_the_page_has_the_ends_of_all(
    script: ModuleType,
) -> None:
    """Red on the day after the default's last update: let another be first in DISTROS by then."""
    assert script.ended(script.DISTROS[0], datetime.date.today()) == ""
    page = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    for distro, end in script.ENDS.items():
        assert f"| {distro.capitalize()} | {end} |" in page
    assert script.ENDS.keys() >= set(script.DISTROS)


def test_a_distribution_that_has_ended_is_named_with_the_one_to_take(script: ModuleType) -> None:
    after = script.ENDS["kilted"] + datetime.timedelta(days=1)
    assert script.ended("kilted", script.ENDS["kilted"]) == ""
    assert "2026-12-31" in script.ended("kilted", after) and "DISTRO=jazzy" in script.ended("kilted", after)


def test_a_stage_that_fails_is_done_again(script: ModuleType) -> None:
    def fail() -> None:
        raise SystemExit("no compiler")

    script.stage("messages", "building", "old", lambda: None)
    with pytest.raises(SystemExit):
        script.stage("messages", "building", "new", fail)
    done = []
    script.stage("messages", "building", "old", lambda: done.append(True))
    assert done == [True]


def test_a_digest_changes_with_a_file_its_name_and_the_files_below_a_folder(
    script: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "msg"
    (folder / "srv").mkdir(parents=True)
    digests = {script.digest(folder)}
    for path, text in (
        (folder / "A.msg", ""),
        (folder / "A.msg", "bool x"),
        (folder / "srv" / "A.srv", "---"),
    ):
        path.write_text(text)
        digests.add(script.digest(folder))
    (folder / "A.msg").rename(folder / "B.msg")
    digests.add(script.digest(folder))
    assert len(digests) == 5
    assert script.digest(folder) in digests


def test_exports_of_the_wheels_name_this_machines_python(script: ModuleType) -> None:
    relocated = [
        script._relocated(folder, "/usr/include/python3.12", "/venv/numpy/include")
        for folder in (
            "/opt/python/cp312-cp312/include/python3.12",
            "/opt/python/cp312-cp312/lib/python3.12/site-packages/numpy/_core/include",
            "${_IMPORT_PREFIX}/include/std_msgs",
        )
    ]
    assert relocated == [
        "/usr/include/python3.12",
        "/venv/numpy/include",
        "${_IMPORT_PREFIX}/include/std_msgs",
    ]


def test_only_interfaces_that_are_not_there_are_built(script: ModuleType, tmp_path: Path) -> None:
    packages = [tmp_path / "test" / "interfaces" / name for name in ("no_such_msgs", "std_msgs")]
    assert script.not_installed(packages) == ["test/interfaces/no_such_msgs"]


def test_a_machine_without_wheels_is_told_to_use_colcon(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit, match="Linux aarch64"):
        script.check_machine()


def test_the_callers_ros_does_not_reach_what_make_runs() -> None:
    callers = {
        "AMENT_PREFIX_PATH": "/opt/ros/humble",
        "CMAKE_PREFIX_PATH": "/opt/ros/humble",
        "COLCON_PREFIX_PATH": "/home/me/ws/install",
        "LD_LIBRARY_PATH": "/opt/ros/humble/lib",
        "PYTHONPATH": "/opt/ros/humble/lib/python3.10/site-packages",
        "RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp",
        "ROS_DISTRO": "humble",
        "VIRTUAL_ENV": "/home/me/env",
        "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1",
    }
    command = ["make", "--silent", "--eval", "environment: ; @env", "environment"]
    completed = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **callers}, capture_output=True, text=True, check=True
    )
    remaining = {line.partition("=")[0] for line in completed.stdout.splitlines()}
    assert "PATH" in remaining
    assert remaining & callers.keys() == set()


@pytest.mark.parametrize(("python", "status"), [(sys.executable, 0), ("/bin/false", 1), ("/no/python", 1)])
def test_a_named_python_is_taken_or_refused_in_one_sentence(python: str, status: int) -> None:
    result = subprocess.run(["bash", ROOT / "scripts/python.sh", python], capture_output=True, text=True)
    assert result.returncode == status
    if status:
        assert result.stderr == (
            f"PYTHON={python} does not fit: give a Python from 3.10 to 3.13 that has its venv module.\n"
        )
    else:
        assert Path(result.stdout.strip()).exists()


def test_a_missing_compiler_is_named_with_its_packages_to_those_who_are_not_root(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(script.debian, "can_install", lambda: False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match=r"apt-get install g\+\+ make"):
        script.check_machine()


def test_an_environment_that_is_another_checkouts_is_not_emptied(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    (tmp_path / ".venv").symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(script, "VENV", tmp_path / ".venv")
    with pytest.raises(SystemExit, match="theirs"):
        script.make_venv()
    assert (tmp_path / "theirs" / "file").exists()
