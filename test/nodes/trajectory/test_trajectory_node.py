"""The trajectory node on its own: chunks from the test, joints from the test or the simulated arm."""

from __future__ import annotations

import numpy as np
from builders import JOINTS
from chunks import Policy
from rosgraph_msgs.msg import Clock
from stack import CALM_SENSORS

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert

S = 1_000_000_000


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


def test_after_the_clock_went_back_the_robot_goes_on_in_the_new_time(start, operator):
    node = start("trajectory", autostart=True, use_sim_time=True, check_controllers=False)
    clock = operator.node.create_publisher(Clock, "/clock", 10)
    policy, position = Policy(operator), np.zeros(JOINTS)
    policy.goal = np.full(JOINTS, 0.1)
    sim = {"now": 1000 * S}

    def runs_until(condition):
        def tick():
            sim["now"] += S // 50
            message = Clock()
            convert.set_stamp(message.clock, sim["now"])
            clock.publish(message)
            policy.tick(sim["now"], position)
            return condition()

        return tick

    def sent_in(low_s: int, high_s: int):
        return lambda: any(low_s * S < s.trajectory.start_ns < high_s * S for s in operator.sent)

    operator.wait(runs_until(sent_in(1000, 2000)), 90.0, "trajectory")
    sim["now"] = 100 * S
    operator.wait(runs_until(sent_in(100, 900)), 90.0, "trajectory in the time that was set back")
    assert "ROS time jumped by -" in node.log


def test_two_robots_in_one_graph_do_not_mix(start, contract, tmp_path, ros_domain):
    for namespace in ("a", "b"):
        start("sim_robot", namespace, **CALM_SENSORS)
        start("trajectory", namespace, autostart=True)
    with Operator(contract, "a") as a, Operator(contract, "b") as b:
        a.wait(lambda: a.measured, 90.0, "joint state of a")
        begin = b.wait(lambda: b.measured, 90.0, "joint state of b").positions
        policy = Policy(a)
        policy.goal = a.measured.positions + 0.4
        a.wait(
            policy.drives(lambda: np.abs(a.measured.positions - policy.goal).max() < 0.05),
            90.0,
            "a at its goal",
        )
        assert a.chunks and not b.chunks and not b.sent
        np.testing.assert_allclose(b.measured.positions, begin, atol=0.01)
        b.wait(lambda: "trajectory: motion" in b.diagnostics, 90.0, "diagnostics of b")
        a.wait(policy.drives(lambda: "trajectory: motion" in a.diagnostics), 90.0, "diagnostics of a")
        assert b.diagnostics["trajectory: motion"].message.startswith("holding")
        instruction = a.reset("reach", 5)
        a.wait(lambda: a.truth.instruction == instruction, 90.0, "reset of a")
        b.hold()
        a.wait(
            policy.drives(lambda: a.diagnostics["trajectory: motion"].message == "running"), 90.0, "a running"
        )
