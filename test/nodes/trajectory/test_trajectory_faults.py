"""Joints that cannot be true, and others who publish beside us: the trajectory node stops and says it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import rclpy
from chunks import Policy, S
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.context import Context
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk, Motion
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert

HERE = np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.3])
ELBOW = 2


@pytest.fixture
def policy(start, operator) -> Policy:
    """Chunks and joints for a trajectory node that runs."""
    operator.process = start("trajectory", autostart=True, check_controllers=False)
    policy = Policy(operator)
    policy.goal = HERE + 0.05
    wait_for(policy, operator, Motion.RUNNING)
    return policy


def wait_for(policy: Policy, operator, state: int, timeout_s: float = 90.0) -> None:
    """Wait, with chunks and joints going out, until the node says that it is in this state."""
    operator.wait(
        policy.drives(lambda: operator.motions and operator.motions[-1].state == state, HERE),
        timeout_s,
        f"motion state {state}",
    )


def reasons(operator) -> list[str]:
    return [reason for motion in operator.motions for reason in motion.reasons]


def resume(operator, policy: Policy) -> None:
    future = operator.node.create_client(Trigger, "trajectory/resume").call_async(Trigger.Request())
    operator.wait(policy.drives(future.done, HERE), 90.0, "answer of ~/resume")


def for_a_second(operator, policy: Policy) -> None:
    until_ns = operator.now_ns() + S
    operator.wait(policy.drives(lambda: operator.now_ns() > until_ns, HERE), 90.0, "a second")


def test_a_joint_that_jumps_is_named_and_only_resume_goes_on(policy, operator):
    def jumped(message) -> None:
        message.position[ELBOW] += 2.0

    policy.change = jumped
    sentence = "elbow_flex jumped by +2.00 rad: look at its encoder or driver"
    operator.wait(
        policy.drives(lambda: any(sentence in r for r in reasons(operator)), HERE), 90.0, "word of the jump"
    )
    policy.change = None
    wait_for(policy, operator, Motion.HOLDING)
    for_a_second(operator, policy)
    line = operator.wait(
        policy.drives(lambda: operator.diagnostics.get("trajectory: motion"), HERE), 90.0, "diagnostics"
    )
    operator.wait(
        policy.drives(
            lambda: operator.diagnostics["trajectory: motion"].level == DiagnosticStatus.ERROR, HERE
        ),
        90.0,
        f"an error, not {line.message}",
    )
    assert operator.motions[-1].state == Motion.HOLDING and sentence in operator.motions[-1].reasons[0]
    resume(operator, policy)
    wait_for(policy, operator, Motion.RUNNING)


def test_joints_that_were_put_elsewhere_with_a_word_begin_anew(policy, operator):
    beginning = operator.motions[-1].beginning
    future = operator.node.create_client(Trigger, "trajectory/reset").call_async(Trigger.Request())
    operator.wait(policy.drives(future.done, HERE), 90.0, "answer of ~/reset")
    there = HERE + 0.7
    policy.goal = there
    operator.wait(
        policy.drives(
            lambda: (
                operator.motions[-1].state == Motion.RUNNING and operator.motions[-1].beginning > beginning
            ),
            there,
        ),
        90.0,
        "motion from there",
    )
    assert not any("jumped" in reason for reason in reasons(operator))


def of_nan(message: JointState) -> None:
    message.position[ELBOW] = math.nan


def with_a_name_too_many(message: JointState) -> None:
    message.name = [*message.name, "wheel"]


def later(message: JointState, by_s: float) -> None:
    stamp = message.header.stamp
    convert.set_stamp(stamp, convert.stamp_ns(stamp) + round(by_s * S))


def test_states_that_cannot_be_used_hold_the_arm_until_they_can(policy, operator):
    """Which ones those are is tested without the node (test/sensing/test_joints.py)."""
    for change, refusal, reason in (
        (of_nan, "refused: joint state of elbow_flex is nan", "old, the limit is"),
        (with_a_name_too_many, "refused: joint state has 7 names and 6 positions", "old, the limit is"),
        (partial(later, by_s=-2.0), "", "old, the limit is"),
        (partial(later, by_s=5.0), "", "in the future"),
    ):
        count = len(operator.motions)
        policy.change = change

        def named(count: int = count, reason: str = reason) -> bool:
            told = [r for motion in operator.motions[count:] for r in motion.reasons]
            return any(r.startswith("joint_states is") and reason in r for r in told)

        operator.wait(policy.drives(named, HERE), 90.0, f"{reason!r}, because of {change}")
        wait_for(policy, operator, Motion.HOLDING)
        log = policy.drives(lambda refusal=refusal: refusal in operator.process.log, HERE)
        operator.wait(log, 90.0, f"{refusal!r} in the log")
        count = len(operator.sent)
        for_a_second(operator, policy)
        assert len(operator.sent) == count, change
        policy.change = None
        wait_for(policy, operator, Motion.RUNNING)
    assert max(np.ptp(sent.trajectory.positions, axis=0).max() for sent in operator.sent) < 0.06
    assert len({m.beginning for m in operator.motions}) == 1, "one of these was taken for a moved arm"
    assert all(bool(m.reasons) == (m.state != Motion.RUNNING) for m in operator.motions)


@pytest.mark.parametrize(
    ("topic", "kind", "sentence"),
    [
        (
            "arm_controller/joint_trajectory",
            JointTrajectory,
            "another publisher of commands has appeared on arm_controller/joint_trajectory: /stranger",
        ),
        ("action_chunk", ActionChunk, "a second publisher has appeared on action_chunk: /stranger"),
    ],
)
def test_a_second_publisher_is_named_and_stops_it(policy, operator, topic, kind, sentence):
    for _ in range(4):  # what the first looks find was there before
        for_a_second(operator, policy)
    assert operator.motions[-1].state == Motion.RUNNING
    context = Context()
    rclpy.init(context=context)
    stranger = rclpy.create_node("stranger", context=context)
    try:
        stranger.create_publisher(kind, topic, qos.COMMAND)
        operator.wait(
            policy.drives(lambda: any(sentence in r for r in reasons(operator)), HERE), 90.0, "the stranger"
        )
        wait_for(policy, operator, Motion.HOLDING)
        assert sentence in operator.process.log
    finally:
        stranger.destroy_node()
        context.try_shutdown()
    for_a_second(operator, policy)
    assert operator.motions[-1].state == Motion.HOLDING
    resume(operator, policy)
    wait_for(policy, operator, Motion.RUNNING)
