"""What was held or released stays so: over processes that were killed or ended, and over the lifecycle; what
the state file of a node gives back, and what it does not believe."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from motion import JOINTS, LIMITS, S
from world import Clock, Disk, Parameters, Process, StreamLine, make_contract, make_joints

from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.joining import MOVING
from vla_accel_ros.control.following.watchdog import OPERATOR, RELEASED
from vla_accel_ros.control.holds import RESTARTED, UNKNOWN
from vla_accel_ros.control.state_file import LARGEST, Restored, StateFile

PAUSES, SWITCHES = Options(), Options(release_by="switch", release_to="theirs")


class Node(Process):
    """A process whose joints move as a test says. go_on: the parameter after_restart."""

    def __init__(self, disk: Disk, options: Options = PAUSES, go_on: bool = True) -> None:
        self.now, self.position = S, np.zeros(len(JOINTS))
        contract = make_contract("forward_command", make_joints(JOINTS, LIMITS))
        clock = Clock(lambda: self.now)
        super().__init__(contract, Parameters(options), clock, lambda _: StreamLine(len), disk, go_on)
        self.run(1.0)

    def run(self, seconds: float, speed: float = 0.0) -> None:
        for _ in range(round(seconds * 100)):
            self.now += S // 100
            self.position = self.position + speed / 100
            self.joints(JOINTS, self.position, self.now)
            self.watch()

    def answer(self, name: str, speed: float = 0.0) -> tuple[bool, str]:
        """Of an order."""
        self.order(name)
        self.run(2.0, speed)
        return self.answers[name]


def killed(node: Node) -> None:
    """Nothing is written any more."""


def ended(node: Node) -> None:
    node.motion.holds.finish()


ends = pytest.mark.parametrize("end", [killed, ended])


@ends
def test_hold_of_the_operator_survives_processes_until_it_is_resumed(end: Callable[[Node], None]) -> None:
    disk = Disk()
    node = Node(disk)
    node.order("hold")
    for _ in range(2):  # nobody holds the second
        end(node)
        node = Node(disk)
        assert list(node.holds) == [OPERATOR]
    node.order("resume")
    end(node)
    assert not Node(disk).holds


def test_process_that_was_killed_is_held_until_it_is_resumed_and_one_that_ended_is_not() -> None:
    disk = Disk()
    node = Node(disk, go_on=False)
    assert not any(node.motion.deactivate())  # it rests
    for end in (killed, ended):  # nobody resumes the one that ends
        end(node)
        node = Node(disk, go_on=False)
        assert list(node.holds) == [RESTARTED]
    node.order("resume")
    ended(node)
    assert not Node(disk, go_on=False).holds


@ends
def test_released_robot_stays_released_until_it_is_reclaimed(end: Callable[[Node], None]) -> None:
    disk = Disk()
    node = Node(disk)
    assert node.answer("release")[0]
    end(node)
    node = Node(disk)
    assert RELEASED in node.answer("resume")[1]
    assert not any(node.motion.deactivate())
    node.motion.activate()
    assert list(node.holds) == [RELEASED]
    assert node.answer("reclaim")[0]
    assert not node.holds and not node.manager.asked


@pytest.mark.parametrize("sure", [True, False])
def test_controllers_that_were_switched_are_switched_back_by_the_next_process(sure: bool) -> None:
    """Whatever its parameters say; sure: it did not die before the controller manager had answered."""
    disk = Disk()
    node = Node(disk, SWITCHES)
    assert node.answer("release")[0] and node.manager.asked == [(("theirs",), ("ours",))]
    node.motion.holds.switch(["theirs"], ["ours"], sure)
    node = Node(disk, PAUSES)
    assert node.answer("reclaim")[0]
    assert node.manager.asked == [(("ours",), ("theirs",))] and node.manager.sure == sure


def test_controllers_of_others_are_not_taken_from_them_in_motion() -> None:
    node = Node(Disk(), SWITCHES)
    assert node.answer("release")[0]
    node.run(0.5, speed=0.1)
    reclaimed, why = node.answer("reclaim", speed=0.1)
    assert not reclaimed and MOVING in why and len(node.manager.asked) == 1
    assert not any(node.motion.deactivate())  # nobody watches them then
    assert not node.answer("reclaim", speed=0.1)[0] and len(node.manager.asked) == 1
    node.motion.activate()
    assert node.answer("reclaim")[0] and len(node.manager.asked) == 2


def test_robot_is_released_when_the_controller_manager_is_late_and_not_when_it_refuses() -> None:
    node = Node(Disk(), SWITCHES)
    node.manager.refusal = "no controller theirs"
    released, why = node.answer("release")
    assert not released and node.manager.refusal in why and not node.holds
    node.manager.late = True
    assert not node.answer("release")[0] and list(node.holds) == [RELEASED]
    assert not node.answer("reclaim")[0] and list(node.holds) == [RELEASED]
    node.manager.late, node.manager.refusal = False, ""
    assert node.answer("reclaim")[0] and not node.holds
    assert not node.manager.sure and len(node.manager.asked) == 4


@pytest.mark.parametrize("left", [Restored(problem="it is damaged"), Restored({"holds": 5})])
def test_state_that_cannot_be_believed_holds_the_robot(left: Restored) -> None:
    disk = Disk()
    disk._content = left
    node = Node(disk)
    (reason,) = node.holds
    assert reason.startswith(UNKNOWN) and (left.problem or str(disk.path)) in reason
    node.order("resume")
    assert not node.holds


class FullDisk(Disk):
    """Keeps nothing, and says so."""

    def keep(self, fields: Mapping[str, Any], clean: bool = False) -> Future[str]:
        written: Future[str] = Future()
        written.set_result("the disk is full")
        return written


def test_robot_whose_holds_cannot_be_written_is_held_and_does_not_go_on_by_itself() -> None:
    (reason,) = Node(FullDisk(), go_on=False).holds
    assert reason.startswith(UNKNOWN) and "the disk is full" in reason
    with pytest.raises(ValueError, match=r"after_restart.*the disk is full"):
        Node(FullDisk())


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
