"""Whether a controller's parameters let it execute what it is sent.

A controller with other joints, another interface or other units does not move, or moves wrongly, and at most
its own log says so. Its parameters show it. An error would move the robot wrongly or not at all; a warning
makes the motion worse. Parameters that a controller does not have are not judged, since they differ between
releases. Facts come in as plain data (nodes/controllers/parameters.py requests them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from vla_accel_ros.contract.checks.findings import Finding, error, warning
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import SERVO, Controller

_JTC = (
    "joints",
    "command_interfaces",
    "interpolation_method",
    "interpolate_from_desired_state",
    "allow_partial_joints_goal",
    "allow_trajectory_replacement",
)
_FORWARD = ("joints", "interface_name")
_SERVO_NODE = "moveit_servo"
_SERVO_NAMES = ("command_in_type", "incoming_command_timeout")
# Controllers that take one number per joint, and the meaning of that number.
_GROUPS = {
    "position_controllers/": "positions",
    "velocity_controllers/": "velocities",
    "effort_controllers/": "efforts",
    "forward_command_controller/": "bare numbers",
}
# A motor lags behind its command by some tens of milliseconds.
_LAG_S = 0.05

Problem = tuple[Callable[[str, str, str], Finding], str, str]
"""How bad, the fact and its fix: a finding without the controller's name."""


@dataclass(frozen=True)
class Sender:
    """How trajectories are sent. stamp: parameter of the trajectory node. speeds: greatest speed of each
    joint by name."""

    stamp: str = "now"
    speeds: Mapping[str, float] | None = None

    @classmethod
    def of(cls, contract: Contract, stamp: str) -> Sender:
        """The sender for the controllers of a contract."""
        return cls(stamp, {joint.name: joint.velocity for joint in contract.joints})


def node_of(controller: Controller) -> str:
    """The controller's node name, relative like its topic."""
    return controller.topic.rpartition("/")[0]


def asked(controller: Controller) -> tuple[str, ...]:
    """Names of the parameters of the controller's node that are judged."""
    if controller.kind in SERVO:
        return tuple(f"{_SERVO_NODE}.{name}" for name in _SERVO_NAMES)
    if controller.kind == "forward_command":
        return _FORWARD
    if controller.kind == "joint_trajectory":
        return (*_JTC, *(_tolerance(joint) for joint in controller.joints))
    return ()  # of another package, which alone knows its controller's parameters


def judge(controller: Controller, values: Mapping[str, object], sender: Sender = Sender()) -> list[Finding]:
    """The findings about a controller; empty if there are none.

    values: those of its parameters that it has, by name, and "type", its plugin, if known.
    """
    problems: Iterator[Problem] = iter(())
    if controller.kind in SERVO:
        problems = _servo(controller, values)
    elif controller.kind == "forward_command":
        problems = _forward(controller, values)
    elif controller.kind == "joint_trajectory":
        problems = _trajectory(controller, values, sender)
    return [level(controller.topic, fact, fix) for level, fact, fix in problems]


def _trajectory(controller: Controller, values: Mapping[str, object], sender: Sender) -> Iterator[Problem]:
    for prefix, numbers in _GROUPS.items():
        if str(values.get("type", "")).startswith(prefix):
            fact = f"the controller is a {values['type']}, which takes {numbers} instead of trajectories"
            yield error, fact, "write kind: forward_command if it takes positions, or another topic"
    joints = values.get("joints")
    partial = values.get("allow_partial_joints_goal") is True
    if isinstance(joints, (list, tuple)) and not _covers(joints, controller.joints, partial):
        yield _other_joints(joints, controller.joints)
    interfaces = values.get("command_interfaces")
    if isinstance(interfaces, (list, tuple)) and interfaces and "position" not in interfaces:
        fact = f"its command_interfaces are {', '.join(map(str, interfaces))}, without position"
        yield warning, fact, "tune its gains, on which the motion then depends"
    if values.get("interpolation_method") == "none":
        fact = "its interpolation_method is none, so it jumps from point to point"
        yield error, fact, "set it to splines in the controller's parameters"
    # A stamped trajectory repeats the commanded motion and is joined in the middle, so the state from which
    # the controller would interpolate is never used (bench/handover.py).
    if values.get("interpolate_from_desired_state") is False and sender.stamp == "zero":
        fact = (
            "interpolate_from_desired_state is false, and trajectories without a stamp then start from the "
            "measured state, so that each of them jerks"
        )
        yield error, fact, "set our parameter stamp to now, or that of the controller to true"
    if values.get("allow_trajectory_replacement") is True:
        fact = (
            "allow_trajectory_replacement is true, so that a trajectory begins when it arrives, not when it "
            "is stamped, and the joints step by what they move in the difference between two deliveries"
        )
        yield error, fact, "set it to false in the controller's parameters"
    for joint, speed in (sender.speeds or {}).items():
        tolerance = values.get(_tolerance(joint))
        if isinstance(tolerance, float) and 0.0 < tolerance < _LAG_S * speed:
            fact = (
                f"{_tolerance(joint)} is {tolerance:g}, which a joint that lags {_LAG_S * 1e3:.0f} ms leaves "
                f"at its full speed of {speed:g}, and the controller then aborts the motion"
            )
            yield warning, fact, "raise it, or set it to 0"


def _forward(controller: Controller, values: Mapping[str, object]) -> Iterator[Problem]:
    kind = str(values.get("type", ""))
    if kind.endswith("JointTrajectoryController"):
        fact = f"the controller is a {kind}, which takes trajectories instead of bare positions"
        yield error, fact, "write kind: joint_trajectory"
    if kind.startswith(("velocity_controllers/", "effort_controllers/")):
        yield error, f"the controller is a {kind}, which does not take positions", "use a position controller"
    interface = values.get("interface_name")
    if isinstance(interface, str) and interface not in ("", "position"):
        fact = f"its interface_name is {interface}, but we send positions"
        yield error, fact, "set it to position in the controller's parameters"
    joints = values.get("joints")
    if isinstance(joints, (list, tuple)) and tuple(joints) != controller.joints:
        if set(joints) == set(controller.joints):
            fact = f"the controller takes its joints in the order {', '.join(joints)}"
            yield error, fact, "write controllers[].joints in that order"
        else:
            yield _other_joints(joints, controller.joints)


def _servo(controller: Controller, values: Mapping[str, object]) -> Iterator[Problem]:
    if values.get(f"{_SERVO_NODE}.command_in_type") == "unitless" and controller.kind != "servo_pose":
        fact = "Servo's command_in_type is unitless, but we send rad/s and m/s"
        yield error, fact, "set moveit_servo.command_in_type to speed_units"
    timeout = values.get(f"{_SERVO_NODE}.incoming_command_timeout")
    if isinstance(timeout, float) and controller.rate_hz:
        fact = f"Servo's incoming_command_timeout is {timeout:g} s"
        if 0.0 < timeout < 2.0 / controller.rate_hz:
            fact = f"{fact}, less than two periods of our {controller.rate_hz:g} Hz, so that it halts between"
            yield warning, f"{fact} commands", "raise it, or controllers[].rate_hz"
        elif timeout == 0.0 or timeout > 0.5:
            yield warning, f"{fact}, for which it moves on without commands", "set it to 0.1"


def _covers(joints: list | tuple, ours: tuple[str, ...], partial: bool) -> bool:
    return set(ours) <= set(joints) if partial else set(ours) == set(joints)


def _other_joints(joints: list | tuple, ours: tuple[str, ...]) -> Problem:
    fact = f"the controller moves {', '.join(joints)} but the contract gives it {', '.join(ours)}"
    return error, fact, "fix controllers[].joints"


def _tolerance(joint: str) -> str:
    return f"constraints.{joint}.trajectory"
