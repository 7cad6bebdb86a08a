"""Names: every topic and node can be called otherwise, and two robots in one graph stay two.

Separate processes, real topics, real physics; policies of random weights keep the arms moving.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from builders import CALM, make_checkpoint, make_config
from calling import call
from stack import CALM_SENSORS, Stack, set_going, speed, wait_for_motion, wait_for_rest
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator

LEFT, RIGHT = "reach the red block", "reach the blue block"


def test_every_topic_and_node_can_be_called_otherwise(start, contract, tmp_path, ros_domain):
    cameras = {"camera/front/image_raw": "/ceiling/rgb", "camera/wrist/image_raw": "eye"}
    robot = {**cameras, "joint_states": "arm/state"}
    between = {"action_chunk": "plan", "motion": "doing"}
    outputs = {"arm_controller/joint_trajectory": "arm/go", "gripper_controller/joint_trajectory": "hand/go"}
    model = make_checkpoint(tmp_path / "model", make_config(horizon=32), reach=CALM)
    start("sim_robot", remaps={**robot, **outputs}, **CALM_SENSORS)
    start(
        "inference",
        remaps={**robot, **between, "instruction": "say", "__node": "brain"},
        autostart=True,
        model=str(model),
        steps=2,
    )
    start(
        "trajectory",
        remaps={**robot, **between, **outputs, "__node": "hands"},
        autostart=True,
        mode="rtc",
        lead_s=0.1,
    )
    renamed = replace(
        contract,
        joint_states=replace(contract.joint_states, topic="arm/state"),
        controllers=tuple(replace(c, topic=outputs[c.topic]) for c in contract.controllers),
    )
    with Operator(renamed) as operator:
        operator.wait(lambda: operator.measured, 90.0, "joint state")
        operator.instruct("words on a topic that nobody listens to")
        waiting = operator.wait(lambda: operator.diagnostics.get("brain: inference"), 90.0, "diagnostics")
        operator.wait(
            lambda: "instruction" in operator.diagnostics["brain: inference"].message,
            90.0,
            f"word of the missing instruction, last {waiting.message!r}",
        )
        operator.node.create_publisher(String, "say", qos.LATCHED).publish(String(data=LEFT))
        operator.wait(lambda: operator.sent, 120.0, "trajectory")
        assert not operator.chunks and not operator.motions, "these names are free"
        line = operator.wait(lambda: operator.diagnostics.get("brain: chunking"), 90.0, "diagnostics")
        operator.wait(
            lambda: operator.diagnostics["brain: chunking"].message == "guided",
            90.0,
            f"guidance, which the remapped motion topic asks for, last {line.message!r}",
        )
        assert call(operator, Trigger, "hands/hold", Trigger.Request()).success
        wait_for_rest(operator)


@pytest.fixture
def robots(contract, ros_domain) -> Iterator[tuple[Operator, Operator]]:
    with Operator(contract, "left") as left, Operator(contract, "right") as right:
        yield left, right


def moving_since(operator: Operator, since_ns: int) -> bool:
    return any(j.stamp_ns > since_ns and speed(j) > 0.3 for j in operator.joints[-50:])


def test_two_robots_in_one_graph_are_driven_apart(start, tmp_path, robots):
    left, right = robots
    stacks = [Stack(start, tmp_path / name, name) for name in ("left", "right")]
    begin = right.wait(lambda: right.measured, 90.0, "joint state of the right robot").positions
    left.wait(lambda: left.measured, 90.0, "joint state of the left robot")
    left.instruct(LEFT)
    wait_for_motion(left)
    assert not right.chunks and not right.sent and not right.answers
    np.testing.assert_allclose(right.measured.positions, begin, atol=0.01)

    set_going(right)
    right.instruct(RIGHT)
    for operator, words in ((left, LEFT), (right, RIGHT)):
        operator.wait(lambda o=operator, w=words: o.answer and o.answer.prompt == w, 90.0, "own answer")
        numbers = [received.chunk.request_id for received in operator.chunks]
        assert numbers == sorted(set(numbers)), "chunks of another inference node are among them"
    assert {answer.prompt for answer in left.answers} == {LEFT}

    left.hold()
    left.wait(lambda: left.motions[-1].state == Motion.HOLDING, 90.0, "left robot held")
    held_ns = right.now_ns()
    right.wait(lambda: moving_since(right, held_ns), 90.0, "right robot in motion")
    assert right.motions[-1].state == Motion.RUNNING

    left.resume()
    wait_for_motion(left)
    stacks[0].inference.kill()
    left.wait(lambda: left.motions[-1].state == Motion.HOLDING, 90.0, "left robot stopped")
    killed_ns = right.now_ns()
    right.wait(lambda: moving_since(right, killed_ns), 90.0, "right robot in motion")
