"""The trajectory node on its own: chunks from the test, joints from the test or the simulated arm."""

from __future__ import annotations

import numpy as np
from chunks import Policy
from home_robot import Robot
from stack import CALM_SENSORS

from vla_accel_ros.nodes.trajectory.reports import motion_line


def test_chunks_move_the_arm_to_their_goal_within_its_limits(start, operator):
    start("sim_robot", **CALM_SENSORS)
    start("trajectory", autostart=True)
    policy = Policy(operator)
    begin = operator.wait(lambda: operator.measured, 90.0, "joint state").positions
    policy.goal = begin + np.array([0.5, 0.2, -0.2, 0.2, -0.4, 0.2])
    operator.wait(
        policy.drives(lambda: np.abs(operator.measured.positions - policy.goal).max() < 0.05),
        90.0,
        "arm at the goal",
    )
    top = np.array([joint.velocity for joint in operator.contract.joints])
    assert (np.abs([j.velocities for j in operator.joints]).max(axis=0) <= 1.3 * top).all()
    for sent in operator.sent:
        assert not sent.trajectory.velocities[-1].any()

    def aged():
        stats = operator.loops.get("image_to_trajectory")
        return stats if stats is not None and stats.runs else None

    age = operator.wait(policy.drives(aged), 90.0, "ages of what was sent")
    assert 0.0 <= age.p50_s <= age.p99_s < operator.contract.chunk.max_age_s + 1.0


def test_a_chunk_with_a_nan_is_refused_and_the_arm_stops(start, operator):
    start("sim_robot", **CALM_SENSORS)
    node = start("trajectory", autostart=True)
    policy = Policy(operator)
    policy.goal = operator.wait(lambda: operator.measured, 90.0, "joint state").positions + 0.2
    operator.wait(policy.drives(lambda: operator.sent and "running" in node.log), 90.0, "trajectory")
    policy.poison = float("nan")
    operator.wait(policy.drives(lambda: "stopping: chunk is" in node.log), 90.0, "stop")

    def told() -> bool:
        return any("chunks are refused: action_chunk" in r for m in operator.motions for r in m.reasons)

    operator.wait(told, 30.0, "the refusal as the reason, on motion")
    assert "chunk refused: action_chunk" in node.log and "is no number to move to" in node.log
    operator.wait(policy.drives(lambda: "holding" in node.log), 90.0, "hold")
    count = len(operator.sent)
    policy.poison = None
    operator.wait(policy.drives(lambda: len(operator.sent) > count), 90.0, "trajectory after the poison")
    assert any("nan" in sentence for sentence in operator.refused)


def test_diagnostics_say_the_speed_and_its_task_where_there_is_one():
    for tasks, values in (("1; slow*=0.2", ["0.2 for 'slowly up'"]), ("1", [])):
        robot = Robot("joint_trajectory", tasks=tasks)
        robot.run(0.3)
        robot.node.motion.runs.begin("slowly up")
        line = motion_line(robot.robot, (), "", robot.now)
        assert [pair.value for pair in line.values if pair.key == "speed"] == values
