"""A port of Fast DDS's shared memory that was deleted while a process reads it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_accel_ros.nodes.running.environment import lost_ports

SHARED = Path("/dev/shm")


@pytest.mark.parametrize("port", [7411, 7413])
def test_a_port_that_nobody_reads_or_that_was_made_again_is_not_lost(tmp_path, port):
    process = proc(tmp_path, [f"fastdds_port{port} (deleted)", "fastdds_port7413"], ["fastdds_port7413_el"])
    assert lost_ports(process) == frozenset()


@pytest.mark.parametrize("name", ["fastdds", "fastrtps"])
@pytest.mark.parametrize("lock", ["port7413_el", "port7413_el (deleted)"])
def test_a_port_that_is_read_and_deleted_is_lost(tmp_path, lock, name):
    locks = [f"{name}_{lock}", f"{name}_port7415_el"]
    process = proc(tmp_path, [f"{name}_port7413 (deleted)", f"{name}_port7415"], locks)
    assert lost_ports(process) == {7413}


def test_without_proc_nothing_is_known(tmp_path):
    assert lost_ports(tmp_path / "none") == frozenset()


def proc(folder: Path, mapped: list[str], opened: list[str]) -> Path:
    """What the kernel says of a process."""
    (folder / "fd").mkdir()
    lines = [f"7f00-7f01 rw-s 00000000 00:1b 77 {SHARED / name}" for name in mapped]
    (folder / "maps").write_text("\n".join(["7e00-7e01 r-xp 00000000 00:00 0", *lines]) + "\n")
    for number, name in enumerate(opened):
        (folder / "fd" / str(number)).symlink_to(SHARED / name)
    return folder
