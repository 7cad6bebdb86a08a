"""Whatever the joints' driver does: what can be used is used, else the arm is held and goes on by itself."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable

import numpy as np
import pytest
from builders import JOINTS
from chunks import Policy, S
from sensor_msgs.msg import JointState

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes.messages import convert

HERE = np.zeros(JOINTS)
ELBOW = 2


def shifted(message: JointState, by_s: float) -> None:
    stamp = message.header.stamp
    convert.set_stamp(stamp, convert.stamp_ns(stamp) + round(by_s * S))


def of_nan(message: JointState) -> None:
    message.position[ELBOW] = math.nan


def without_elbow(message: JointState) -> None:
    del message.position[ELBOW]
    message.name = [name for i, name in enumerate(message.name) if i != ELBOW]


def without_positions(message: JointState) -> None:
    message.velocity, message.position = message.position, array("d")


def with_a_name_too_many(message: JointState) -> None:
    message.name = [*message.name, "wheel"]


def with_the_elbow_twice(message: JointState) -> None:
    message.name = [*message.name, "elbow_flex"]
    message.position.append(0.5)


def two_seconds_old(message: JointState) -> None:
    shifted(message, -2.0)


def from_the_future(message: JointState) -> None:
    shifted(message, 5.0)


def unstamped(message: JointState) -> None:
    convert.set_stamp(message.header.stamp, 0)


class Frozen:
    """A driver that sends its last state again and again."""

    def __init__(self) -> None:
        self._stamp_ns = 0

    def __call__(self, message: JointState) -> None:
        self._stamp_ns = self._stamp_ns or convert.stamp_ns(message.header.stamp)
        convert.set_stamp(message.header.stamp, self._stamp_ns)


def with_wheels(message: JointState) -> None:
    message.name = ["left_wheel", *message.name, "right_wheel"]
    message.position = array("d", [math.nan, *message.position, math.inf])


class Shuffled:
    """Joints in another order each time, and stamps that arrive up to 0.2 s late, in any order."""

    def __init__(self) -> None:
        self._chance = random.Random(0)

    def __call__(self, message: JointState) -> None:
        order = self._chance.sample(range(JOINTS), JOINTS)
        message.name = [message.name[i] for i in order]
        message.position = array("d", [message.position[i] for i in order])
        shifted(message, -self._chance.choice((0.0, 0.0, 0.05, 0.2)))


class Parts:
    """Two drivers that take turns, each with a part of the arm."""

    def __init__(self) -> None:
        self._first = False

    def __call__(self, message: JointState) -> None:
        self._first = not self._first
        part = slice(0, 3) if self._first else slice(3, JOINTS)
        message.name, message.position = list(message.name[part]), message.position[part]


@pytest.fixture
def policy(start, operator) -> Policy:
    """Chunks and joints for a trajectory node that runs."""
    operator.process = start("trajectory", autostart=True, check_controllers=False)
    policy = Policy(operator)
    policy.goal = np.full(JOINTS, 0.1)
    wait_for(policy, operator, Motion.RUNNING)
    return policy


def wait_for(policy: Policy, operator, state: int) -> None:
    """Wait, with chunks and joints going out, until the node says that it is in this state."""
    operator.wait(
        policy.drives(lambda: operator.motions and operator.motions[-1].state == state, HERE),
        90.0,
        f"motion state {state}",
    )


def test_states_that_cannot_be_used_hold_the_arm_until_they_can(policy, operator):
    odd: list[tuple[Callable[[JointState], None], str, str]] = [
        (of_nan, "refused: joint state of elbow_flex is nan", "old, the limit is"),
        (without_elbow, "", "old, the limit is"),
        (without_positions, "", "old, the limit is"),
        (with_a_name_too_many, "refused: joint state has 7 names and 6 positions", "old, the limit is"),
        (with_the_elbow_twice, "refused: joint state names a joint twice", "old, the limit is"),
        (two_seconds_old, "", "old, the limit is"),
        (unstamped, "", "old, the limit is"),
        (Frozen(), "", "old, the limit is"),
        (from_the_future, "", "in the future: the clock was set back, or two clocks differ"),
    ]
    for change, refusal, reason in odd:
        count = len(operator.motions)
        policy.change = change

        def named(count: int = count, reason: str = reason) -> bool:
            reasons = [r for motion in operator.motions[count:] for r in motion.reasons]
            return any(r.startswith("joint_states is") and reason in r for r in reasons)

        operator.wait(policy.drives(named, HERE), 90.0, f"{reason!r}, because of {change}")
        wait_for(policy, operator, Motion.HOLDING)
        log = policy.drives(lambda refusal=refusal: refusal in operator.process.log, HERE)
        operator.wait(log, 90.0, f"{refusal!r} in the log")
        sent, chunks = len(operator.sent), len(operator.chunks)
        operator.wait(
            policy.drives(lambda chunks=chunks: len(operator.chunks) > chunks + 3, HERE), 90.0, "chunks"
        )
        assert len(operator.sent) == sent, change
        policy.change = None
        wait_for(policy, operator, Motion.RUNNING)
    for sent in operator.sent:
        assert np.abs(sent.trajectory.positions).max() < 0.11
    assert len({m.beginning for m in operator.motions}) == 1, "one of these was taken for a moved arm"


@pytest.mark.parametrize("change", [with_wheels, Shuffled(), Parts()], ids=["wheels", "shuffled", "parts"])
def test_states_with_more_joints_in_any_order_late_or_in_parts_are_used(policy, operator, change):
    begun = [(len(operator.motions), len(operator.sent))]  # of unbroken motion: a busy machine may break it

    def thirty_in_a_row() -> bool:
        motions, sent = len(operator.motions), len(operator.sent)
        if motions != begun[-1][0]:
            begun.append((motions, sent))
        return sent > begun[-1][1] + 30

    policy.change = change
    operator.wait(policy.drives(thirty_in_a_row, HERE), 180.0, "thirty trajectories without a stop")
    assert operator.motions[-1].state == Motion.RUNNING
    assert len({m.beginning for m in operator.motions}) == 1, "these were taken for a moved arm"
    assert "refused" not in operator.process.log


def test_states_without_a_stamp_from_the_beginning_are_named_so(start, operator):
    operator.process = start("trajectory", autostart=True, check_controllers=False)
    policy = Policy(operator)
    policy.change = unstamped

    def named() -> bool:
        return any("joint states have no stamp" in r for m in operator.motions for r in m.reasons)

    operator.wait(policy.drives(named, HERE), 90.0, "what is wrong with the joint states")
    assert not operator.sent
