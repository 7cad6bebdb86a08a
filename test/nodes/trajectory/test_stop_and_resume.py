"""Whatever falls silent, the arm stops smoothly within the age limit, holds, and goes on by itself.

Separate processes, real topics, real physics. The arm is moved by a policy of random weights, so that it is
in motion at any moment.
"""

from __future__ import annotations

import signal

import numpy as np
import pytest
from calling import stop_cameras
from stack import (
    Stack,
    at_rest_from_ns,
    between,
    commanded_acceleration,
    measured_leap,
    speed,
    wait_for_motion,
    wait_for_rest,
    wait_until_ns,
)
from stand_ins import motion_of

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.clients.operator import Operator

S = 1_000_000_000
# Braking from full speed (3 rad/s at 20 rad/s^2), the servo's lag behind its command, and a busy machine:
# that an arm stops no later than it must is tested without a clock (control/following).
STOP_S = 0.15
SLACK_S = 1.0
# What delivery may take: of the old path, twice lead_max_s goes on.
KEPT_S = 0.3


@pytest.fixture
def ros_domain(shared_domain: int) -> int:
    """Of the robot that all these tests share."""
    return shared_domain


@pytest.fixture(scope="module")
def shared_stack(shared_start, tmp_path_factory) -> Stack:
    return Stack(shared_start, tmp_path_factory.mktemp("model"))


@pytest.fixture
def stack(shared_stack: Stack, operator) -> Stack:
    """It moves, whatever the test before did to it."""
    shared_stack.mend(operator)
    return shared_stack


def age_limit_s(contract: Contract) -> float:
    return min(camera.max_age_s for camera in contract.cameras)


def assert_stopped_smoothly(operator: Operator, last_stamp_ns: int, since_ns: int, limit_s: float) -> None:
    """At rest within the age limit and the time to brake, and within the acceleration limits all the way."""
    limit_s += KEPT_S
    wait_until_ns(operator, last_stamp_ns + round((limit_s + STOP_S + SLACK_S + 0.5) * S))
    rest_ns = at_rest_from_ns(operator, since_ns)
    assert (rest_ns - last_stamp_ns) * 1e-9 <= limit_s + STOP_S + SLACK_S
    assert commanded_acceleration(operator, since_ns).max() <= 1.02
    assert measured_leap(operator, since_ns) <= 1.5


def assert_held(operator: Operator, seconds: float = 1.0) -> None:
    """Nothing is sent and nothing moves for a while."""
    since_ns, count = operator.now_ns(), len(operator.sent)
    wait_until_ns(operator, since_ns + round(seconds * S))
    states = between(operator, since_ns, since_ns + round(seconds * S))
    assert len(operator.sent) == count
    assert np.ptp([j.positions for j in states], axis=0).max() < 0.01


def test_kill_9_of_inference_in_motion_stops_the_arm_and_a_new_process_goes_on(stack, operator, contract):
    stack.inference.kill()
    killed_ns = operator.now_ns()
    last_stamp_ns = operator.chunks[-1].chunk.stamp_ns
    assert_stopped_smoothly(operator, last_stamp_ns, killed_ns - S // 5, age_limit_s(contract))
    assert any(speed(j) > 0.1 for j in between(operator, killed_ns - S, killed_ns))
    stack.trajectory.wait_for_log("stopping: inference has said nothing")
    assert_held(operator)

    resumed_ns = operator.now_ns()
    stack.inference.start()
    wait_for_motion(operator)
    assert commanded_acceleration(operator, resumed_ns).max() <= 1.02
    assert measured_leap(operator, resumed_ns) <= 1.5


def test_a_stopped_camera_stops_the_arm_and_its_return_sets_it_going(stack, operator, contract):
    stop_cameras(operator, "wrist")
    stopped_ns = operator.now_ns()
    assert_stopped_smoothly(operator, stopped_ns, stopped_ns - S // 5, age_limit_s(contract))
    operator.wait(
        lambda: "wrist" in operator.diagnostics["inference: inference"].message, 90.0, "word of the camera"
    )
    assert_held(operator)
    stop_cameras(operator)
    wait_for_motion(operator)


def test_a_robot_that_reports_no_joints_is_not_moved_when_it_comes_back_elsewhere(stack, operator):
    stack.robot.kill()
    stack.trajectory.wait_for_log("holding")
    stack.robot.start()
    back_ns = operator.now_ns()
    operator.wait(lambda: operator.measured.stamp_ns > back_ns, 90.0, "joint state of the new process")
    first_state = next(j for j in operator.joints if j.stamp_ns > back_ns)

    def after_the_return() -> list[Trajectory]:
        """What it may execute: before its first joints it was not there yet."""
        sent = (s.trajectory for s in operator.sent)
        return [t for t in sent if t.start_ns > first_state.stamp_ns and "shoulder_pan" in t.joints]

    operator.wait(lambda: bool(after_the_return()), 90.0, "trajectory after the return")
    first = after_the_return()[0]
    wait_until_ns(operator, first.start_ns)
    # The node may have heard the robot before we did, and have set it going; then it moves already.
    there = min(operator.joints, key=lambda joints: abs(joints.stamp_ns - first.start_ns))
    begin, _ = first.sample(first.start_ns)
    assert np.abs(begin - there.positions[:5]).max() < 0.05 + 0.1 * speed(there)


def test_hold_stops_the_arm_until_resume(stack, operator):
    held_ns = operator.now_ns()
    assert "resume" in operator.hold()
    assert_stopped_smoothly(operator, held_ns, held_ns, 0.0)
    assert_held(operator)
    word = "holding: held by the operator"
    operator.wait(lambda: motion_of(operator).startswith(word), 90.0, f"{word!r} in the diagnostics")
    assert operator.resume() == "going on"
    wait_for_motion(operator)


def test_kill_9_of_trajectory_in_motion_and_a_new_process_goes_on_when_it_is_resumed(stack, operator):
    stack.trajectory.kill()
    killed_ns = operator.now_ns()
    wait_for_rest(operator)  # at the end of the last trajectory, which the controller has
    stack.trajectory.start()
    word = "holding: restarted after a crash; ~/resume goes on"
    operator.wait(lambda: motion_of(operator) == word, 90.0, f"{word!r} in the diagnostics")
    assert_held(operator)
    assert operator.resume().startswith("going on")
    wait_for_motion(operator)
    assert commanded_acceleration(operator, killed_ns).max() <= 1.02
    assert measured_leap(operator, killed_ns) <= 1.5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_each_node_ends_cleanly_in_motion_with_the_arm_held_and_comes_back(stack, operator, number):
    for node in (stack.inference, stack.trajectory):
        ended_ns = operator.now_ns()
        assert node.end(number) == 0
        assert "Traceback" not in node.log and "killed:" not in node.log
        wait_for_rest(operator)
        assert_held(operator, 0.5)
        node.start()
        wait_for_motion(operator)
        assert commanded_acceleration(operator, ended_ns).max() <= 1.02
        assert measured_leap(operator, ended_ns) <= 1.5


def test_a_new_instruction_reaches_the_next_frames(stack, operator):
    other = "put the red block on the white pad"
    operator.instruct(other)
    operator.wait(
        lambda: operator.answer and operator.answer.prompt == other, 90.0, "answer about the new words"
    )
    told = next(a for a in operator.answers if a.prompt == other)
    operator.wait(
        lambda: operator.chunks[-1].chunk.kv_version > told.kv_version, 90.0, "chunk of a later frame"
    )
