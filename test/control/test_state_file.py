"""The state file of a node: what it gives back, and what it does not believe."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from vla_accel_ros.control.state_file import LARGEST, Restored, StateFile

FIELDS = {"holds": ["held by the operator"]}


def make(folder: Path, node: str = "/arm/trajectory", domain: int = 7) -> StateFile:
    return StateFile(node, domain, {"XDG_STATE_HOME": str(folder)})


@pytest.fixture
def kept(tmp_path: Path) -> StateFile:
    """One that was written."""
    state = make(tmp_path)
    assert state.keep(FIELDS).result(10.0) == ""
    return state


def test_there_is_nothing_at_first(tmp_path):
    assert make(tmp_path).restore() == Restored({}, clean=True)


def test_what_was_kept_last_is_there_and_says_how_the_process_ended(kept, tmp_path):
    assert make(tmp_path).restore() == Restored(FIELDS, clean=False)
    kept.keep({"holds": ["x"]})
    assert kept.finish({"holds": []}).result(10.0) == ""
    assert make(tmp_path).restore() == Restored({"holds": []}, clean=True)


def test_each_node_of_each_domain_has_its_own(kept, tmp_path):
    assert kept.path == tmp_path / "vla_accel_ros" / "7.arm.trajectory.json"
    for other in (make(tmp_path, "/arm/inference"), make(tmp_path, domain=8), make(tmp_path, "/trajectory")):
        assert other.restore() == Restored()


def test_it_is_the_users_alone(kept, tmp_path):
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert list(kept.folder.iterdir()) == [kept.path]


def test_without_the_variable_it_is_in_the_users_state_folder():
    home = StateFile("/trajectory", 0, {"HOME": "/home/someone"})
    assert home.path == Path("/home/someone/.local/state/vla_accel_ros/0.trajectory.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"{}", b'{"holds": []}', b"\xff\xfe", b"[" * 60_000],
    ids=["empty", "cut", "list", "number", "no fields", "not ours", "no text", "nested"],
)
def test_a_damaged_one_is_said_and_mended_by_the_next_write(kept, content):
    kept.path.write_bytes(content)
    restored = kept.restore()
    assert not restored.fields and not restored.clean
    assert f"{kept.path} is damaged" in restored.problem
    assert kept.keep(FIELDS).result(10.0) == "" and kept.restore().fields == FIELDS


def assert_refused(state: StateFile, why: str) -> None:
    restored = state.restore()
    assert not restored.fields and not restored.clean
    assert str(state.path) in restored.problem and why in restored.problem


def test_a_link_is_not_followed(kept, tmp_path):
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps({"holds": [], "clean": True}))
    kept.path.unlink()
    kept.path.symlink_to(elsewhere)
    assert_refused(kept, "symbolic links")
    kept.path.with_name(f"{kept.path.name}.new").symlink_to(elsewhere)
    assert kept.keep(FIELDS).result(10.0) == "" and not kept.path.is_symlink()
    assert json.loads(elsewhere.read_text())["clean"]


def test_a_file_that_others_can_write_a_pipe_and_a_huge_one_are_not_believed(kept):
    kept.path.chmod(0o666)
    assert_refused(kept, "only this user can write")
    kept.path.write_bytes(b" " * (LARGEST + 1))
    kept.path.chmod(0o600)
    assert_refused(kept, "more than 65536: delete it")
    kept.path.unlink()
    os.mkfifo(kept.path, 0o600)  # nobody writes to it: reading must not wait
    assert_refused(kept, "only this user can write")


def test_a_folder_that_others_can_enter_or_that_is_a_link_is_not_believed_nor_written(kept, tmp_path):
    kept.folder.chmod(0o755)
    assert_refused(kept, "chmod 700")
    assert "chmod 700" in kept.keep(FIELDS).result(10.0)
    kept.folder.chmod(0o700)
    kept.folder.rename(tmp_path / "moved")
    kept.folder.symlink_to(tmp_path / "moved")
    assert_refused(kept, "cannot be used")
    assert "cannot be used" in kept.keep(FIELDS).result(10.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_and_folders_of_another_user_are_not_believed(kept):
    os.chown(kept.path, 4711, -1)
    assert_refused(kept, "only this user can write")
    os.chown(kept.folder, 4711, -1)
    assert_refused(kept, "must be this user's alone")


def test_what_a_writer_that_died_left_behind_is_no_hindrance(kept):
    kept.path.with_name(f"{kept.path.name}.new").write_text("{")
    assert kept.keep({"holds": []}).result(10.0) == ""
    assert kept.restore().fields == {"holds": []}


def test_a_disk_that_takes_nothing_is_said(tmp_path):
    (tmp_path / "vla_accel_ros").write_text("in the way")
    assert "cannot be used" in make(tmp_path).keep(FIELDS).result(10.0)
    assert_refused(make(tmp_path), "cannot be used")
