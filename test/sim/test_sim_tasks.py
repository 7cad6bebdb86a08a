"""Tasks: their words, honest success, and the answer that is true at one instant."""

from __future__ import annotations

import math

import pytest
from driving import drive, joints_over

from training.expert import Expert
from vla_accel_ros.sim.kinematics import GRIPPER_CLOSED, GRIPPER_OPEN
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import Task, tasks

PLACE = Task("place", "red", "yellow")


def hold(robot: SimRobot, seconds: float) -> None:
    for _ in range(round(seconds * 30)):
        robot.step(robot.target)


@pytest.mark.parametrize("task", tasks())
def test_the_words_name_the_task(task: Task) -> None:
    assert Task.parse(task.instruction) == task
    assert Task.parse(f"  {task.instruction.upper()}. ") == task


def test_there_are_twelve_tasks_of_three_families() -> None:
    assert [len(tasks(family)) for family in ("reach", "place", "follow")] == [3, 6, 3]
    assert len(set(tasks())) == 12


@pytest.mark.parametrize("text", ["", "reach the pink block", "put the red block on the green pad", "dance"])
def test_unknown_words_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=rf"'{text}' .*COLOUR block.*COLOUR pad"):
        Task.parse(text)


@pytest.mark.parametrize(
    "fields, message",
    [
        (("lift", "red"), r"family .*'lift'.* reach, place, follow"),
        (("reach", "pink"), r"block .*'pink'.* red, green, blue"),
        (("place", "red"), r"pad .*None.* yellow, white"),
        (("reach", "red", "white"), r"pad .*'white'"),
    ],
)
def test_impossible_tasks_are_refused(fields: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Task(*fields)


@pytest.mark.parametrize("offset_m, done", [(0.0, True), (0.02, True), (0.03, False)])
def test_reach_is_done_within_25_mm_of_the_ready_point(robot: SimRobot, offset_m: float, done: bool) -> None:
    robot.reset("reach the red block", 0)
    block = robot.view().blocks["red"]
    robot.set_joints(joints_over(block.x + offset_m, block.y, block.z + 0.05))
    assert robot.truth().answer == ("done" if done else "moving to the red block")


def test_reach_succeeds_only_after_staying(robot: SimRobot) -> None:
    robot.reset("reach the red block", 0)
    block = robot.view().blocks["red"]
    robot.set_joints(joints_over(block.x, block.y, block.z + 0.05))
    hold(robot, 0.25)
    assert not robot.truth().success
    hold(robot, 0.15)
    assert robot.truth().success


def test_the_wrong_block_does_not_count(robot: SimRobot) -> None:
    robot.reset("reach the red block", 0)
    block = robot.view().blocks["blue"]
    robot.set_joints(joints_over(block.x, block.y, block.z + 0.05))
    hold(robot, 1.0)
    assert not robot.truth().success and robot.truth().answer == "moving to the red block"


def test_place_tells_its_story_in_order(robot: SimRobot, expert: Expert) -> None:
    robot.reset(PLACE, 4)
    expert.reset()
    story: list[str] = []
    while not robot.truth().success:
        answer = robot.truth().answer
        if not story or story[-1] != answer:
            story.append(answer)
        robot.step(expert.act())
    assert story == ["moving to the red block", "holding the red block", "done"]
    assert robot.truth().held is None


def test_a_block_on_its_pad_but_still_held_is_not_placed(robot: SimRobot, expert: Expert) -> None:
    robot.reset(PLACE, 4)
    expert.reset()
    while not (robot.view().on_pad("red", "yellow") and robot.truth().held == "red"):
        robot.step(expert.act())
    target = robot.target
    target[5] = GRIPPER_CLOSED
    for _ in range(30):
        robot.step(target)
    assert robot.truth().held == "red"
    assert not robot.truth().success and robot.truth().answer == "holding the red block"


@pytest.mark.parametrize("offset_m, placed", [(0.0, True), (0.04, True), (0.05, False)])
def test_place_counts_by_the_blocks_centre(robot: SimRobot, offset_m: float, placed: bool) -> None:
    robot.reset(PLACE, 0)
    x, y = robot.view().pads["yellow"]
    robot.place_block("red", x - math.copysign(offset_m, x - 0.2), y, 0.0)
    hold(robot, 0.5)
    assert robot.truth().success == placed


def test_the_other_pad_does_not_count(robot: SimRobot) -> None:
    robot.reset(PLACE, 0)
    robot.place_block("red", *robot.view().pads["white"], 0.0)
    hold(robot, 0.5)
    assert not robot.truth().success


def test_a_block_above_its_pad_is_not_placed(robot: SimRobot) -> None:
    robot.reset(PLACE, 0)
    robot.place_block("red", *robot.view().pads["yellow"], 0.0, z=0.08)
    assert robot.truth().answer == "moving to the red block"


def test_following_is_judged_at_the_end_of_the_episode(robot: SimRobot, expert: Expert) -> None:
    robot.reset("follow the blue block", 5)
    expert.reset()
    drive(robot, expert, 7.9)
    assert robot.truth().answer == "following the blue block"
    assert not robot.truth().success
    drive(robot, expert, 8.0)
    assert robot.truth().success


def test_following_for_only_half_of_the_last_seconds_fails(robot: SimRobot, expert: Expert) -> None:
    robot.reset("follow the blue block", 5)
    expert.reset()
    drive(robot, expert, 6.5)
    away = joints_over(0.2, -0.1 if robot.view().tip.y > 0 else 0.1, 0.14)
    robot.set_joints(away)
    while robot.time_s < 8.0 - 1e-9:
        robot.step(robot.target)
    assert robot.truth().answer == "moving to the blue block"
    assert not robot.truth().success


def test_staying_where_the_block_was_is_not_following(robot: SimRobot) -> None:
    failures = 0
    for seed in range(6):
        robot.reset("follow the red block", seed)
        block = robot.view().blocks["red"]
        robot.set_joints(joints_over(block.x, block.y, block.z + 0.05))
        hold(robot, 8.0)
        failures += not robot.truth().success
    assert failures >= 5


def test_closed_fingers_beside_a_block_hold_nothing(robot: SimRobot) -> None:
    robot.reset(PLACE, 0)
    block = robot.view().blocks["red"]
    robot.set_joints(joints_over(block.x, block.y, 0.09, gripper=0.36))
    assert robot.truth().held is None
    robot.set_joints(joints_over(block.x, block.y, 0.012, gripper=GRIPPER_OPEN))
    assert robot.truth().held is None
