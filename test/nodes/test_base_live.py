"""A mobile base of real nodes: a server's velocities arrive on cmd_vel, and its odometry at the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from calling import call, change, settled
from geometry_msgs.msg import Twist, TwistStamped
from lifecycle_msgs.msg import Transition
from nav_msgs.msg import Odometry
from policy_servers import serving
from rclpy.clock import Clock, ClockType
from stand_ins import ALL
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract

S = 1_000_000_000
LINEAR, HARDER, RATE_HZ = 0.4, 0.8, 20.0
BASE = {
    "topic": "base/cmd_vel",
    "rate_hz": RATE_HZ,
    "axes": {"x": 1.0, "yaw": 0.017453292519943295},
    "linear": LINEAR,
    "angular": 1.0,
    "linear_acceleration": HARDER,
    "angular_acceleration": 2.0,
    "timeout_s": 0.5,
    "odometry": "base/odom",
}


class Base:
    """Moves as it is sent, and says so. Attribute `commands`: received at, stamp (0 without one), x, yaw."""

    def __init__(self, operator: Operator, kind: type) -> None:
        self._operator = operator
        self.commands: list[tuple[int, int, float, float]] = []
        self.frames: set[str] = set()
        operator.node.create_subscription(kind, BASE["topic"], self._on_command, ALL)
        self._odometry = operator.node.create_publisher(Odometry, BASE["odometry"], qos.SENSOR)
        operator.node.create_timer(0.02, self._tell, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _on_command(self, message: Any) -> None:
        stamp_ns = 0
        if isinstance(message, TwistStamped):
            self.frames.add(message.header.frame_id)
            stamp_ns, message = convert.stamp_ns(message.header.stamp), message.twist
        numbers = message.linear.x, message.angular.z
        self.commands.append((self._operator.now_ns(), stamp_ns, *numbers))
        self._operator.changed()

    def _tell(self) -> None:
        message = Odometry()
        convert.set_stamp(message.header.stamp, self._operator.now_ns())
        if self.commands:
            *_, message.twist.twist.linear.x, message.twist.twist.angular.z = self.commands[-1]
        self._odometry.publish(message)

    def rolls(self, x: float, yaw: float) -> bool:
        return bool(self.commands) and np.allclose(self.commands[-1][2:], (x, yaw), atol=1e-6)


class Policy:
    """The arm stays in its middle, and the base goes on at 0.3 m/s and -45 degrees/s."""

    def __init__(self, contract: Contract) -> None:
        self._joints = [(joint.lower + joint.upper) / 2 for joint in contract.joints]
        self.states: list[np.ndarray] = []

    def metadata(self) -> dict[str, Any]:
        return {}

    def answer(self, request: Any) -> dict[str, Any]:
        self.states.append(np.array(request["state"]))
        return {"actions": np.tile([*self._joints, 0.3, -45.0], (30, 1))}


@pytest.fixture(params=[TwistStamped, Twist])
def kind(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def contract(tmp_path: Path, kind: type) -> Contract:
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    fields["base"] = BASE | {"message": kind.__name__}
    if kind is TwistStamped:
        fields["base"]["frame"] = "base_link"
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return Contract.load(path)


def test_a_base_rolls_by_a_policy_that_sees_its_speed_and_stops_by_its_ramp(
    start, operator, arm, cameras, contract, kind, tmp_path
) -> None:
    base, policy, path = Base(operator, kind), Policy(contract), str(tmp_path / "contract.yaml")
    with serving(policy) as server:
        start("trajectory", autostart=True, contract=path)
        options = {"engine": "openpi", "server_url": f"ws://127.0.0.1:{server.port}"}
        start("openpi_inference", autostart=True, contract=path, **options)
        operator.instruct("roll")
        operator.wait(lambda: base.rolls(0.3, -np.pi / 4), 90.0, "the policy's velocity")
        seen = lambda: any(np.allclose(state[-2:], (0.3, -45.0), atol=1e-3) for state in policy.states)  # noqa: E731
        operator.wait(seen, 60.0, "the base's speed in a state")
        assert all(state.shape == (8,) for state in policy.states)
        assert call(operator, Trigger, "trajectory/hold", Trigger.Request()).success
        operator.wait(lambda: base.rolls(0.0, 0.0), 60.0, "a stop")
        count = len(base.commands)
        operator.wait(lambda: len(base.commands) > count + 5, 60.0, "zeros")
        operator.resume()
        operator.wait(lambda: base.rolls(0.3, -np.pi / 4), 90.0, "the policy's velocity again")
        assert change(operator, "trajectory", Transition.TRANSITION_DEACTIVATE)
    settled(operator, "trajectory", lambda: len(base.commands))
    assert base.rolls(0.0, 0.0)
    assert base.frames == ({"base_link"} if kind is TwistStamped else set())
    if kind is TwistStamped:
        stamps = np.array([command[1] for command in base.commands])
        change_x = np.abs(np.diff([command[2] for command in base.commands]))
        passed_s = np.minimum(np.diff(stamps) / S, 2.0 / RATE_HZ)
        assert (change_x <= HARDER * passed_s * 1.01 + 1e-9).all()


def test_a_base_without_odometry_makes_no_observation_and_the_reason_names_it(
    start, operator, arm, cameras, contract, tmp_path
) -> None:
    policy, path = Policy(contract), str(tmp_path / "contract.yaml")
    with serving(policy) as server:
        start("trajectory", autostart=True, contract=path)
        options = {"engine": "openpi", "server_url": f"ws://127.0.0.1:{server.port}"}
        start("openpi_inference", autostart=True, contract=path, **options)
        operator.instruct("roll")

        def told() -> bool:
            return any("base.linear.x" in reason for motion in operator.motions for reason in motion.reasons)

        operator.wait(told, 90.0, "the reason")
    assert not policy.states
