"""What was held or released stays so: over processes that were killed or ended, and over the lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from motion import JOINTS, LIMITS, S
from world import Clock, Disk, Parameters, Process, StreamLine, make_contract, make_joints

from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.joining import MOVING
from vla_accel_ros.control.following.watchdog import OPERATOR, RELEASED
from vla_accel_ros.control.holds import RESTARTED, UNKNOWN
from vla_accel_ros.control.state_file import Restored

PAUSES, SWITCHES = Options(), Options(switches=True, release_to=("theirs",))


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
