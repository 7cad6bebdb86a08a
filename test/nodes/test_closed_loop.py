"""The bundled policy through real topics: it reaches what it is told to, and changes its mind when told so.

Separate processes, physics in real time, no display. Success rates are measured elsewhere over hundreds of
episodes; here a few easy ones show that nothing between image and motion is broken.
"""

from __future__ import annotations

import math

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_model

EPISODES, SUCCESSES = range(1000, 1005), 3
EPISODE_S = 30.0  # on a busy machine; it takes two or three
DENOISE_STEPS = 4


def reached(operator: Operator, instruction: str, since_ns: int, timeout_s: float = EPISODE_S) -> bool:
    """Whether the simulator says so, within the time, of this instruction."""

    def success() -> bool:
        truth = operator.truth
        return truth.success and truth.instruction == instruction and stamp_ns(truth) > since_ns

    try:
        return operator.wait(success, timeout_s, "success")
    except TimeoutError:
        return False


def stamp_ns(truth) -> int:
    return truth.header.stamp.sec * 1_000_000_000 + truth.header.stamp.nanosec


def distance(operator: Operator, colour: str) -> float:
    """From the gripper's tip to the grasp-ready point above a block, in metres."""
    truth = operator.truth
    position_of = {name: pose.position for name, pose in zip(truth.names, truth.poses)}
    tip, block = position_of["gripper"], position_of[f"{colour}_block"]
    return math.dist((tip.x, tip.y, tip.z), (block.x, block.y, block.z + 0.05))


def test_robot_reaches_what_it_is_told_and_says_so_and_a_new_instruction_on_the_way_changes_the_goal(
    start, operator
):
    robot = operator
    start("sim_robot")
    start("trajectory", autostart=True)
    start("inference", autostart=True, steps=DENOISE_STEPS, model=str(demo_model()))
    robot.wait(lambda: robot.measured, 90.0, "joint state")
    robot.instruct(robot.reset("reach", 999))
    robot.wait(lambda: robot.sent, 180.0, "trajectory")
    successes = 0
    for seed in EPISODES:
        since_ns = robot.now_ns()
        instruction = robot.reset("reach", seed)
        robot.instruct(instruction)
        if reached(robot, instruction, since_ns):
            successes += 1
            robot.wait(
                lambda instruction=instruction: robot.answer.prompt == instruction and robot.answer.finished,
                90.0,
                "answer about this instruction",
            )
        if successes == SUCCESSES:
            break
    assert successes == SUCCESSES
    texts = {answer.text for answer in robot.answers if answer.finished}
    assert texts & {*(f"moving to the {colour} block" for colour in ("red", "green", "blue")), "done"}
    ages = robot.wait(lambda: robot.loops.get("image_to_trajectory"), 90.0, "ages of what was sent")
    assert 0.0 < ages.p50_s <= ages.p99_s

    first = robot.reset("reach", EPISODES[0])
    robot.instruct(first)
    colour = first.split()[2]
    other = next(name for name in ("red", "green", "blue") if name != colour)
    begin = distance(robot, colour)
    robot.wait(lambda: distance(robot, colour) < 0.8 * begin, EPISODE_S, "motion towards the first block")
    since_ns = robot.now_ns()
    robot.instruct(f"reach the {other} block")
    assert reached(robot, f"reach the {other} block", since_ns)
    assert distance(robot, other) < 0.06 < distance(robot, colour)
