"""Grippers by GripperCommand and ParallelGripperCommand, against action servers of rclpy's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml
from chunks import Policy
from control_msgs.action import GripperCommand, ParallelGripperCommand
from rclpy.action import ActionServer
from rclpy.clock import Clock, ClockType
from rclpy.task import Future
from sensor_msgs.msg import JointState
from stand_ins import ARM, motion_of, write_contract
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert

ACTION, TOPIC, JOINT = "gripper_controller/gripper_cmd", "gripper_controller/goals", "gripper"
KINDS: dict[str, Any] = {"gripper_command": GripperCommand, "parallel_gripper": ParallelGripperCommand}
FORWARD = {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": 100.0}


class Gripper:
    """Goes to each goal in 20 ms; the arm is where it is told to be. Attributes: `goals`, `most`, the
    greatest number of goals at once; `lost`: it tells no result."""

    def __init__(self, operator: Operator, kind: str) -> None:
        self._node, self._running = operator.node, list[tuple[Any, Future]]()
        self.goals, self.most, self.lost = list[Any](), 0, False
        names = operator.contract.joint_names
        self.position = dict(zip(names, [0.0, 0.0, 0.8, 0.3, 0.0, 0.5]))
        self._kind = KINDS[kind]
        self._server: ActionServer | None = None
        self._node.create_subscription(Float64MultiArray, FORWARD["topic"], self._on_arm, qos.COMMAND)
        self._joints = self._node.create_publisher(JointState, "joint_states", qos.SENSOR)
        self._operator = operator
        self._timer = self._node.create_timer(0.02, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def serve(self) -> None:
        """Its controller is there from now on."""
        self._server = ActionServer(self._node, self._kind, ACTION, self._execute)

    def close(self) -> None:
        """Leave the graph."""
        self._timer.cancel()
        if self._server is not None:
            self._server.destroy()

    async def _execute(self, handle: Any) -> Any:
        command = handle.request.command
        self.goals.append(command)
        position = command.position
        self.position[JOINT] = position if isinstance(position, float) else position[0]
        done: Future = Future()
        self._running.append((handle, done))
        self.most = max(self.most, len(self._running))
        await done
        handle.succeed()
        return self._kind.Result(reached_goal=True)

    def _on_arm(self, message: Float64MultiArray) -> None:
        self.position.update(zip(ARM, message.data))

    def _tick(self) -> None:
        for _, done in () if self.lost else self._running:
            done.set_result(None)
        self._running = self._running if self.lost else []
        message = JointState(name=list(self.position), position=list(self.position.values()))
        convert.set_stamp(message.header.stamp, self._operator.now_ns())
        self._joints.publish(message)


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def contract(tmp_path, kind) -> Contract:
    path = write_contract(tmp_path, FORWARD)
    fields = yaml.safe_load(path.read_text())
    gripper = {"topic": TOPIC, "kind": kind, "action": ACTION, "rate_hz": 20.0, "max_effort": 5.0}
    fields["controllers"] = [fields["controllers"][0], {"joints": [JOINT], **gripper}]
    path.write_text(yaml.safe_dump(fields))
    return Contract.load(path)


@pytest.fixture
def gripper(operator, kind) -> Iterator[Gripper]:
    gripper = Gripper(operator, kind)
    yield gripper
    gripper.close()


@pytest.fixture
def policy(operator) -> Policy:
    policy = Policy(operator)
    policy.goal = np.array([0.2, 0.0, 0.8, 0.3, 0.0, 0.1])
    return policy


def test_gripper_is_moved_by_one_goal_at_a_time_and_its_goals_are_on_a_topic(
    start, tmp_path, operator, policy, gripper, kind
):
    published = list[float]()
    gripper.serve()
    operator.node.create_subscription(Float64MultiArray, TOPIC, lambda m: published.extend(m.data), 100)
    start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))
    reached = policy.drives(lambda: abs(gripper.position[JOINT] - 0.1) < 1e-3)
    operator.wait(reached, 90.0, "gripper at its goal")
    operator.wait(lambda: published, 90.0, "goals on the topic")
    assert gripper.most == 1 and len(gripper.goals) > 3
    goal = gripper.goals[-1]
    if kind == "gripper_command":
        assert goal.max_effort == 5.0
    else:
        velocity = next(j.velocity for j in operator.contract.joints if j.name == JOINT)
        assert (goal.name, list(goal.velocity), list(goal.effort)) == ([JOINT], [velocity], [5.0])


def test_gripper_without_a_controller_holds_the_robot_and_is_named_until_it_is_there(
    start, tmp_path, operator, policy, gripper
):
    start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))
    named = policy.drives(lambda: f"no node has the action {ACTION}" in motion_of(operator))
    operator.wait(named, 90.0, "the action in the reasons")
    assert not gripper.goals
    gripper.serve()
    operator.wait(policy.drives(lambda: gripper.goals), 90.0, "goal")
    gripper.lost = True
    policy.goal = np.array([0.2, 0.0, 0.8, 0.3, 0.0, 0.9])
    named = policy.drives(lambda: f"{ACTION} does not end its goal" in motion_of(operator))
    operator.wait(named, 90.0, "the goal in the reasons")
