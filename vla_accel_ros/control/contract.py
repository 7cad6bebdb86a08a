"""What the motion is given: a contract, measured joints and parameters, by their shape. The contract's own
module (contract/contract.py) imports the limits of control, so it cannot be imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.control.chunking.buffer import MODES
from vla_accel_ros.control.chunking.tempo import USUAL, Tempo
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.kinematics.collisions import Collisions
from vla_accel_ros.control.kinematics.led import Tip
from vla_accel_ros.control.kinematics.rows import Layout
from vla_accel_ros.control.limits.joint_limits import JointLimits, Limited
from vla_accel_ros.control.outputs.output import Controller
from vla_accel_ros.option import check_options, option

LEADS = ("servo_twist", "servo_pose")
"""Kinds of controllers that a hand leads."""


class Joint(Limited, Protocol):
    """A joint of a contract: its limits, and how far it may lag."""

    @property
    def name(self) -> str: ...
    @property
    def following(self) -> Any: ...


class Contract(Protocol):
    """What the motion reads of a contract (contract/contract.py)."""

    @property
    def joints(self) -> Sequence[Joint]: ...
    @property
    def joint_names(self) -> tuple[str, ...]: ...
    @property
    def action_joints(self) -> Sequence[Joint]: ...
    @property
    def action_names(self) -> tuple[str, ...]: ...
    @property
    def controllers(self) -> Sequence[Controller]: ...
    @property
    def commanded(self) -> Sequence[Controller]: ...
    @property
    def base(self) -> Any: ...
    @property
    def home(self) -> Mapping[str, float]: ...
    @property
    def max_ages_s(self) -> Mapping[str, float]: ...
    @property
    def joint_states(self) -> Any: ...
    @property
    def chunk(self) -> Any: ...
    @property
    def twist(self) -> Any: ...
    @property
    def force(self) -> Any: ...
    @property
    def collisions(self) -> Collisions | None: ...
    @property
    def layout(self) -> Layout | None: ...
    @property
    def teleop(self) -> Any: ...


class Joints(Protocol):
    """The measured joints, in the contract's order (sensing/joints.py)."""

    joints: tuple[str, ...]

    @property
    def newest_ns(self) -> int | None: ...
    @property
    def missing(self) -> tuple[str, ...]: ...
    @property
    def stamps_ns(self) -> np.ndarray: ...
    @property
    def counted(self) -> np.ndarray: ...

    def clear(self) -> None: ...

    def add(self, names: Sequence[str], positions: Any, stamp_ns: int, now_ns: int) -> bool: ...

    def newest(self) -> np.ndarray: ...

    def at(self, stamp_ns: int) -> np.ndarray: ...

    def count_from(self, position: np.ndarray) -> None: ...

    def problem(self, now_ns: int, max_age_s: float) -> str: ...


@dataclass(frozen=True)
class Options:
    """The parameters of the trajectory node that the motion follows. execution_horizon is 0 for all
    actions. Raises ValueError, one sentence."""

    mode: str = option(
        "blend",
        "How a new chunk follows the old one: block executes the old one to its end first, async replaces "
        "it, blend crossfades, rtc has the inference node guide each chunk to continue the old one.",
        choices=MODES,
    )
    blend_s: float = option(
        0.2, "Duration of the crossfade of blend from the old chunk to the new [s].", minimum=0.0, maximum=2.0
    )
    execution_horizon: int = option(
        0,
        "Actions of a chunk that block executes before the next; 0 is all.",
        minimum=0,
        maximum=10_000,
    )
    speed: str = option(
        USUAL,
        "Share of the policy's own speed at which chunks are played, or fast: as fast as the limits allow; "
        "'; PATTERN=...' for tasks whose instruction matches (docs/guide/skills.md).",
    )
    release_by: str = option(
        "pause",
        "What ~/release does when the robot is at rest: pause stops sending, switch also has the "
        "controller manager deactivate our controllers and activate release_to.",
        choices=("pause", "switch"),
    )
    release_to: str = option(
        "", "Controllers, comma separated, that are active while ours are released by switch."
    )
    move_speed: float = option(
        0.3,
        "Share of the velocity and acceleration limits that ~/home uses.",
        minimum=0.01,
        maximum=1.0,
    )
    run_timeout_s: float = option(
        0.0,
        "Time after which a goal of run_policy ends [s]; 0 is never.",
        minimum=0.0,
        maximum=86_400.0,
    )
    run_stall_s: float = option(
        10.0,
        "A goal of run_policy ends, with the reasons, when no chunk has moved the arm for this long [s].",
        minimum=0.1,
        maximum=3600.0,
    )

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def switches(self) -> bool:
        """Whether ~/release has the controller manager switch."""
        return self.release_by == "switch"

    def make_tempo(self, contract: Contract) -> Tempo | None:
        """The speed of chunks; None for the policy's own. Raises ValueError where there can be no other."""
        if self.speed == USUAL:
            return None
        if self.mode == "rtc":
            raise ValueError(
                f"speed is {self.speed!r} and mode rtc, which has chunks agree with what is executed at the "
                "policy's own speed: give mode blend, or speed 1"
            )
        if self.make_twists(contract):
            raise ValueError(
                f"speed is {self.speed!r} and a hand or a base is moved by velocities, which have a speed "
                "already: give 1"
            )
        return Tempo(self.speed, JointLimits.of(contract.action_joints))

    def make_twists(self, contract: Contract) -> dict[str, TwistBuffer]:
        """The buffers of the hand's and the base's velocities, the hand's first, by the topics of the
        controllers that take them."""
        buffers, twist, base = dict[str, TwistBuffer](), contract.twist, contract.base
        layout = contract.layout
        if twist is None and layout is not None and layout.led is not None:
            twist = layout.led[0]
        if twist is not None:
            (servo,) = (c for c in contract.controllers if c.kind in LEADS)
            tip = None if contract.twist is not None else Tip(twist.box, goes_on=servo.kind == LEADS[1])
            buffers[servo.topic] = TwistBuffer(
                "second" if contract.twist is None else twist.per,
                twist.linear,
                twist.angular,
                1.0 / servo.rate_hz,
                self.mode,
                self.execution_horizon or None,
                None if contract.force is None else contract.force.retreat.hand,
                tip=tip,
            )
        if base is not None:
            buffers[base.controller.topic] = TwistBuffer(
                "second",
                base.speeds[0],
                base.speeds[1],
                1.0 / base.controller.rate_hz,
                self.mode,
                self.execution_horizon or None,
                columns=slice(-len(base.axes), None),
                places=base.places,
                accelerations=base.accelerations,
                stood_s=base.timeout_s,
                what="base",
            )
        return buffers
