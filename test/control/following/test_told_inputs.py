"""Cameras are watched by what inference tells that it receives, and the true cause is the reason."""

from __future__ import annotations

import pytest
from follower_robot import MS, Robot, S

from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.sensing.arrivals import Inputs

SLOW = Inputs(0, chunks_per_s=2.4, chunks_per_s_needed=3.1).slow
SENTENCE = "the model makes 2.4 chunks/s; this contract needs 3.1"


class Watched(Robot):
    """With a camera; camera_ns: of its newest image."""

    camera_ns = 0


def run(
    robot: Watched,
    seconds: float,
    chunk_s: float = 0.1,
    camera: bool = True,
    told: bool = True,
    waiting_for: str = "",
    slow: str = "",
) -> set[str]:
    """Time passes with a model that takes chunk_s for a chunk; the reasons of all stops."""
    reasons: set[str] = set()
    for tick in range(round(seconds * 100)):
        robot.tick()
        if told and tick % 5 == 0:
            if camera:
                robot.camera_ns = robot.now - 10 * MS
            robot.follower.safety.watchdog.told(
                {"camera/front": robot.camera_ns}, robot.now, waiting_for=waiting_for, slow=slow
            )
        if not waiting_for and told and tick % round(chunk_s * 100) == 0:
            robot.send(0.5, robot.now - round(chunk_s * S))
        change, stop = robot.follower.step(robot.now)
        if change is not None:
            robot.states.append(change.after)
            reasons.update(change.reasons)
        robot.deliver(stop)
    return reasons


@pytest.fixture
def robot() -> Watched:
    robot = Watched()
    robot.camera_ns = robot.now
    while not robot.states:
        run(robot, 0.01)
    robot.placed = None
    run(robot, 2.0)
    assert robot.states == [MotionState.RUNNING]
    return robot


@pytest.mark.parametrize("chunk_s", [0.25, 0.37])
def test_a_slow_model_with_live_cameras_stops_nothing_while_observations_are_young_enough(robot, chunk_s):
    # The images behind a chunk are up to 2 x chunk_s old when the next comes: more than the camera's 0.5 s.
    assert run(robot, 20.0, chunk_s, slow=SLOW) == set()
    assert robot.states == [MotionState.RUNNING]


def test_a_model_that_is_too_slow_is_the_reason_and_no_camera(robot):
    reasons = run(robot, 5.0, 0.7, slow=SLOW)
    assert reasons and all(SENTENCE in reason and "camera" not in reason for reason in reasons)


def test_a_silent_camera_is_the_reason_and_neither_chunk_nor_model(robot):
    reasons = run(robot, 3.0, camera=False, waiting_for="camera front is 0.6 s old", slow=SLOW)
    assert any(reason.startswith("camera/front is ") for reason in reasons)
    assert not any("the model makes" in reason for reason in reasons)


def test_inference_that_says_nothing_is_the_reason_and_nothing_it_would_tell_of(robot):
    reasons = run(robot, 3.0, told=False)
    assert all(reason.startswith("inference has said nothing for ") for reason in reasons) and reasons


def test_what_chunks_wait_for_is_the_reason(robot):
    reasons = run(robot, 3.0, waiting_for="no instruction yet: publish one")
    assert reasons and all(r.startswith("chunk is ") and "no instruction yet" in r for r in reasons)


def test_it_goes_on_within_300_ms_once_all_is_fresh(robot):
    run(robot, 3.0, camera=False, told=False)
    assert robot.states[-1] is MotionState.HOLDING
    since = robot.now
    while robot.states[-1] is not MotionState.RUNNING and robot.now < since + S:
        run(robot, 0.01)
    assert robot.now - since <= 300 * MS


@pytest.mark.parametrize("stamps", [{}, {"camera/front": 1}, {"camera/front": 2**62}, {"camera/rear": 5}])
def test_one_stray_report_stops_no_robot_whose_chunks_another_producer_makes(stamps: dict[str, int]) -> None:
    robot = Robot().go()
    for _ in range(3):
        watchdog = robot.follower.safety.watchdog
        watchdog.told(stamps, robot.now, dict.fromkeys(stamps, "no image"), "no instruction yet")
        robot.run(2.0, goal=-1.0)
    assert robot.states == [MotionState.RUNNING]


def test_a_producer_that_reports_nothing_takes_over_from_inference_without_a_stop() -> None:
    robot = Robot().go()
    for _ in range(20):
        robot.run(0.05, goal=0.5)
        robot.follower.safety.watchdog.told({"camera/front": robot.now - 30 * MS}, robot.now)
    robot.run(3.0, goal=-1.0)
    assert robot.states == [MotionState.RUNNING]
    robot.run(1.0)
    assert robot.follower.safety.state is MotionState.HOLDING, "its chunks are watched as before"
