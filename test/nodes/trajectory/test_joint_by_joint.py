"""What drivers really send of joints: some of them twice, and some that turn on across pi."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from builders import JOINTS
from chunks import Policy, S
from sensor_msgs.msg import JointState

from vla_accel_msgs.msg import Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract

ROLL = 4
"""wrist_roll, which is made continuous here."""
SPEED = 1.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The simulated arm's contract, whose wrist turns without end."""
    text, old = Path(demo_contract()).read_text(), "name: wrist_roll, lower: -2.0, upper: 2.0,"
    assert old in text
    path = tmp_path / "turning.yaml"
    path.write_text(text.replace(old, "name: wrist_roll, lower: -50, upper: 50, continuous: true,"))
    return path


@pytest.fixture
def contract(file) -> Contract:
    return Contract.load(file)


class Driver(Policy):
    """The arm and its policy: joints are where they were last sent to, the wrist as an angle in -pi..pi;
    chunks turn it on. arm: names that its driver sends; a second node repeats all joints with stamps 3 ms
    old."""

    def __init__(self, operator: Operator, arm: int, odd_ns: int | None = None) -> None:
        super().__init__(operator)
        self._states = operator.node.create_publisher(JointState, "joint_states", qos.SENSOR)
        self._arm, self._odd_ns, self._told_ns = arm, odd_ns, 0
        self.angle = 0.0

    def tick(self, now_ns: int, joints: np.ndarray | None = None) -> None:
        newest = (sent.trajectory for sent in reversed(self._operator.sent[-8:]))
        sent = next((path for path in newest if "wrist_roll" in path.joints), None)
        if sent is not None:
            self.angle = float(sent.sample(now_ns)[0][sent.joints.index("wrist_roll")])
        if abs(now_ns - self._told_ns) >= S // 100:
            self._told_ns = now_ns
            self._tell(slice(0, self._arm), now_ns)
            odd_ns = 0 if self._odd_ns is None else self._odd_ns
            self._tell(slice(0, JOINTS), 0 if odd_ns < 0 else now_ns - 3_000_000 + odd_ns)
        self.goal = np.zeros(JOINTS)
        super().tick(now_ns)

    def _tell(self, part: slice, stamp_ns: int) -> None:
        position = np.zeros(JOINTS)
        position[ROLL] = np.angle(np.exp(1j * self.angle))
        names = list(self._operator.contract.joint_names)
        message = JointState(name=names[part], position=position[part].tolist())
        convert.set_stamp(message.header.stamp, stamp_ns)
        self._states.publish(message)

    def _message(self, now_ns: int):
        message = super()._message(now_ns)
        turning = np.angle(np.exp(1j * (self.angle + SPEED * np.arange(1, 31) / 30)))
        actions = np.array(message.actions).reshape(30, JOINTS)
        actions[:, ROLL] = turning
        message.actions = actions.astype(np.float32).ravel().tolist()
        return message


@pytest.fixture
def trajectory(start, operator, file) -> Iterator[None]:
    operator.process = start("trajectory", autostart=True, check_controllers=False, contract=str(file))
    yield


def test_a_wrist_turns_on_across_pi_beside_a_node_that_repeats_the_arm_with_its_gripper(trajectory, operator):
    driver = Driver(operator, arm=JOINTS - 1)
    operator.wait(driver.drives(lambda: driver.angle > 4.5), 120.0, "a wrist beyond pi")
    states = [motion.state for motion in operator.motions]
    assert Motion.STOPPING not in states, operator.process.log
    turned = [s.trajectory for s in operator.sent if "wrist_roll" in s.trajectory.joints]
    for previous, after in pairwise(turned):
        t_ns = np.array([after.start_ns])
        column = after.joints.index("wrist_roll")
        assert abs(after.sample(t_ns)[0] - previous.sample(t_ns)[0])[0, column] < 0.2


@pytest.mark.parametrize(("odd_ns", "fact"), [(-1, "no stamp"), (5 * S, "in the future")])
def test_the_one_joint_whose_driver_stamps_it_wrongly_is_named(trajectory, operator, odd_ns, fact):
    driver = Driver(operator, arm=JOINTS - 1, odd_ns=odd_ns)

    def named() -> bool:
        reasons = [reason for motion in operator.motions for reason in motion.reasons]
        return any("joint gripper" in reason and fact in reason for reason in reasons)

    operator.wait(driver.drives(named), 90.0, f"the gripper and {fact!r}")
    assert not operator.sent
