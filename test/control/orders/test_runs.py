"""Goals of run_policy: how each ends, with which words, and that the robot stops smoothly; simulated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from home_robot import KINDS, Robot

from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.orders.runs import ENDED, LONGEST_PROMPT, Ending, Run, Runs


@pytest.fixture(params=KINDS)
def robot(request) -> Robot:
    return Robot(request.param)


def runs_of(robot: Robot) -> Runs:
    return robot.node.motion.runs


def begins(robot: Robot, prompt: str = "put the cup away") -> Run:
    """A goal, and the robot in motion for it."""
    robot.run(0.3)
    run = runs_of(robot).begin(prompt)
    robot.moves()
    assert run.ending is None
    return run


def ends(robot: Robot, run: Run, goal: float | None = 1.8) -> Ending:
    """Its ending, which comes when the robot is at rest, though chunks still come."""
    for _ in range(200):
        if run.ending is not None:
            break
        robot.run(0.01, goal=goal)
    assert run.ending is not None and robot.state is MotionState.HOLDING
    robot.run(0.02)
    assert robot.speed == 0.0
    robot.assert_smooth()
    return run.ending


@pytest.mark.parametrize(
    ("end", "reason", "words"),
    [
        (lambda runs, run: runs.cancel(run), "cancelled", "client"),
        (lambda runs, run: runs.complete(run, "/done is true"), "completed", "/done"),
        (lambda runs, run: runs.hear(" "), "stopped", "instruction"),
    ],
)
def test_goal_that_is_over_stops_the_robot_which_stays_until_a_newer_goal(
    robot, end: Callable[[Runs, Run], None], reason, words
):
    run, runs = begins(robot), runs_of(robot)
    end(runs, run)
    assert run.ending is None  # it stops first
    ending = ends(robot, run)
    assert ending.reason == reason and words in ending.message
    assert runs.words == ["put the cup away", ""] and robot.holds.lasting == [ENDED]
    stood = robot.path[-1]
    robot.run(1.0, goal=-1.0)
    np.testing.assert_array_equal(robot.path[-1], stood)
    runs.begin("and the plate")
    robot.run(1.0, goal=-1.0)
    assert robot.state is MotionState.RUNNING and runs.words[-1] == "and the plate"


def test_end_of_a_goal_is_taken_back_by_a_person_and_by_an_instruction_from_elsewhere(robot):
    for go_on in (robot.resume, lambda: runs_of(robot).hear("wave")):
        run = begins(robot)
        runs_of(robot).cancel(run)
        ends(robot, run)
        go_on()
        robot.run(1.0, goal=0.5)
        assert robot.state is MotionState.RUNNING and not robot.holds.holds


def test_newer_goal_and_another_instruction_end_a_goal_without_a_stop(robot):
    first = begins(robot)
    second = runs_of(robot).begin("put the cup away")  # sent twice
    assert first.ending is not None and first.ending.reason == "cancelled"
    robot.run(0.05, goal=1.8)
    runs_of(robot).hear("wave")
    assert second.ending is not None and second.ending.reason == "stopped" and "wave" in second.ending.message
    assert robot.state is MotionState.RUNNING
    assert runs_of(robot).words == ["put the cup away"] * 2  # the other's is not withdrawn


@pytest.mark.parametrize("order", ["hold", "release", "home"])
def test_goal_ends_with_the_reason_when_something_else_stops_the_robot(robot, order):
    run = begins(robot)
    robot.call(order)
    assert ends(robot, run).reason == "error"
    assert run.ending is not None and run.ending.message.startswith("the robot is held: ")


def test_goal_ends_with_the_fault_when_a_joint_does_not_follow(robot):
    run = begins(robot)
    robot.off = True
    for _ in range(400):
        robot.run(0.01, goal=-1.8)
    assert run.ending is not None and run.ending.reason == "error"
    assert next(iter(robot.holds.faults)) in run.ending.message


@pytest.mark.parametrize("order", ["hold", "release"])
def test_goal_to_a_robot_that_is_held_has_ended_at_once_and_says_nothing(robot, order):
    robot.run(0.3)
    robot.call(order)
    robot.run(1.0)
    run = runs_of(robot).begin("go")
    assert run.ending is not None and run.ending.reason == "error"
    assert "held: " in run.ending.message and not runs_of(robot).words


def test_goal_begins_after_others_had_the_robot_between_two_goals(robot):
    run = begins(robot)
    runs_of(robot).cancel(run)
    ends(robot, run)
    for order in ("release", "reclaim"):  # as MoveIt before and after a task
        robot.call(order)
        robot.run(3.0, goal=0.5)
        assert robot.answers[order][0]
    again = runs_of(robot).begin("and the plate")
    robot.run(2.0, goal=0.5)
    assert again.ending is None and robot.state is MotionState.RUNNING


@pytest.mark.parametrize("prompt", ["", " \n", "x" * (LONGEST_PROMPT + 1)])
def test_goal_without_usable_words_does_not_disturb_the_one_that_runs(robot, prompt):
    run = begins(robot)
    refused = runs_of(robot).begin(prompt)
    assert refused.ending is not None and "prompt" in refused.ending.message
    assert run.ending is None and runs_of(robot).run is run


def test_goal_survives_a_pause_of_chunks_and_ends_with_their_reason_after_run_stall_s(robot):
    run = begins(robot)
    robot.run(5.0)  # it stands
    robot.run(1.0, goal=0.0)
    assert run.ending is None and robot.state is MotionState.RUNNING
    robot.run(9.0)
    assert run.ending is None
    robot.run(3.0)
    assert run.ending is not None and run.ending.reason == "error"
    assert "chunk" in run.ending.message and "10 s" in run.ending.message


def test_goal_ends_after_run_timeout_s(robot):
    runs = robot.node.motion.runs = Runs(robot.robot, 2.0, 10.0)
    run = begins(robot)
    robot.run(2.0, goal=0.0)
    assert ends(robot, run, goal=0.0).reason == "timeout"
    assert runs.run is None


def test_goal_ends_after_its_own_timeout_s_and_not_the_nodes(robot):
    robot.node.motion.runs = Runs(robot.robot, 1.0, 10.0)
    robot.run(0.3)
    run = runs_of(robot).begin("put the cup away", 3.0)
    robot.run(2.9, goal=1.8)
    assert run.verdict is None
    robot.run(0.2, goal=1.8)
    assert run.verdict is not None and run.verdict.reason == "timeout" and "3 s" in run.verdict.message


@pytest.mark.parametrize("timeout_s", [-1.0, math.nan, math.inf, 86_401.0])
def test_goal_with_an_impossible_timeout_s_does_not_disturb_the_one_that_runs(robot, timeout_s):
    run = begins(robot)
    refused = runs_of(robot).begin("again", timeout_s)
    assert refused.ending is not None and f"timeout_s is {timeout_s:g}" in refused.ending.message
    assert runs_of(robot).run is run and run.ending is None


def test_goal_ends_when_the_node_is_deactivated_and_activation_begins_without_it(robot):
    run = begins(robot)
    robot.deactivate()
    assert run.ending is not None and run.ending.reason == "node_deactivated"
    assert runs_of(robot).words[-1] == ""
    robot.node.activate()
    robot.run(0.5)
    assert robot.holds.lasting == []


def test_goal_goes_on_after_a_jump_of_the_clock(robot):
    run = begins(robot)
    robot.jump(-50.0)
    robot.run(3.0, goal=0.5)
    assert run.ending is None and robot.state is MotionState.RUNNING


def test_goal_counts_trajectories_and_the_actions_that_are_ahead():
    robot = Robot("joint_trajectory")
    run = begins(robot)
    assert 0 < runs_of(robot).published(run) <= robot.sent
    assert 20 <= runs_of(robot).queued() <= 32  # of 32 rows, which came some 5 rows ago at most
    robot.run(3.0)
    assert runs_of(robot).queued() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_every_goal_ends_once_and_motion_keeps_the_limits_whatever_comes(kind, seed):
    rng, robot = random.Random(seed), Robot(kind)
    runs, begun = runs_of(robot), list[Run]()
    robot.run(0.3)
    orders: list[Callable[[], object]] = [
        lambda: begun.append(runs.begin(rng.choice(["a", "b", ""]))),
        lambda: begun.append(runs.begin("c")),
        lambda: runs.cancel(rng.choice(begun)) if begun else None,
        lambda: runs.complete(rng.choice(begun), "done") if begun else None,
        lambda: runs.hear(rng.choice(["", "d"])),
        robot.resume,
        robot.hold,
    ]
    for _ in range(100):
        rng.choice(orders)()
        robot.run(rng.choice([0.0, 0.02, 0.2]), goal=rng.choice([1.8, -1.8, None]))
        unfinished = [run for run in begun if run.ending is None]
        assert unfinished in ([], [runs.run])
    robot.run(30.0)
    assert all(run.ending is not None and run.ending.message for run in begun)
    robot.assert_smooth()


def test_holds_tell_apart_what_passes_when_a_controller_listens_again():
    holds = Holds()
    holds.hold("asked for")
    holds.hindered({"nobody listens": ()})
    assert holds.lasting == ["asked for"]
