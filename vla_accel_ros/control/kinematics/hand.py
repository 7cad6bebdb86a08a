"""What the numbers of a hand mean: a pose of one link in another, or how it changes.

absolute: the pose itself. observation: relative to the pose at the chunk's observation, for every row
(GR00T, UMI). measured, commanded: each row changes the pose of the row before; the first one that which was
measured (LIBERO, DROID) or commanded (Bridge) at the observation. A policy that is trained on steps from the
measured pose was shown by how much the arm lags; executed ahead, its rows add up to what they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vla_accel_ros.control.kinematics.rotations import AXES, matrix, numbers, pinocchio

POSITION = ("x", "y", "z")
RELATIVE_TO = ("absolute", "observation", "measured", "commanded")
BASE, TOOL = "base", "tool"
TF = "tf/"
"""Begins the name of an input that is a pose by tf."""
_ROWS, _COLUMNS = "rot6d_rows", "rot6d_columns"
JOINTS = "joints"
"""A state that has the joints themselves."""
OUT_M = 1e-4
"""So far out of a box is not out of it."""


@dataclass(frozen=True)
class Box:
    """Where the tip may be: lower and upper corner in the base [m]."""

    lower: tuple[float, float, float]
    upper: tuple[float, float, float]

    def beyond(self, tips: np.ndarray) -> np.ndarray:
        """How far tips, float64 [..., 3], are out of it, along each axis [m]."""
        return np.maximum(np.maximum(np.array(self.lower) - tips, tips - np.array(self.upper)), 0.0)


@dataclass(frozen=True)
class Tf:
    """Two frames of tf, of which the second in the first is the pose of a state. max_age_s: of its oldest
    transform."""

    base: str
    tip: str
    max_age_s: float


@dataclass(frozen=True)
class Hand:
    """A hand that a policy knows by its pose; it stands for the joints between base and tip.

    name: in front of its columns. base, tip: links of the URDF. rotation: form of the rotation in a row of a
    chunk (rotations.AXES). state: its form in the state, or JOINTS. relative_to: see the module docstring.
    axes: BASE if a change is about the axes of the base (position added, R = change R), TOOL if about those
    of the tip (pose times change). m, rad: what a unit of the policy's change or position is; rad counts for
    forms with angles. zero: rpy of the tip where the policy counts no rotation (axes: base). linear, angular:
    greatest speed [m/s], [rad/s]. box: None for everywhere. beside: its numbers are in front of rows and
    states that have the joints, too, and those are followed. tf: where its state is from, None for the
    measured joints.
    """

    name: str
    base: str
    tip: str
    rotation: str
    state: str
    relative_to: str
    axes: str
    linear: float
    angular: float
    m: float = 1.0
    rad: float = 1.0
    zero: tuple[float, float, float] = (0.0, 0.0, 0.0)
    box: Box | None = None
    beside: bool = False
    tf: Tf | None = None

    @property
    def stream(self) -> str:
        """Names its pose by tf among the inputs."""
        return f"{TF}{self.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its numbers in a row of a chunk."""
        return tuple(f"{self.name}.{axis}" for axis in (*POSITION, *AXES[self.rotation]))

    @property
    def state_columns(self) -> tuple[str, ...]:
        """Names of its numbers in a state; none if that has the joints."""
        axes = () if self.state == JOINTS else (*POSITION, *AXES[self.state])
        return tuple(f"{self.name}.{axis}" for axis in axes)

    def eased(self, speed: float) -> Hand:
        """A copy with this share of its speed."""
        return replace(self, linear=speed * self.linear, angular=speed * self.angular)

    def observed(self, pose: Any) -> np.ndarray:
        """The state of a pose (SE3), float64 [3 + r]."""
        rotation = pose.rotation @ matrix(np.array(self.zero), "rpy").T
        return np.concatenate([pose.translation, numbers(rotation, self.state)])

    def poses(self, rows: np.ndarray, begin: Any) -> list[Any]:
        """The poses (SE3) that rows, float64 [H, 3 + r], ask for. begin: at the observation, as measured or
        commanded. Raises ValueError if a rotation is none."""
        pin, zero = pinocchio(), matrix(np.array(self.zero), "rpy")
        poses: list[Any] = []
        for row in rows * self._units:
            change = pin.SE3(matrix(row[3:], self.rotation), row[:3].copy())
            if self.relative_to == "absolute":
                poses.append(pin.SE3(change.rotation @ zero, change.translation))
                continue
            previous = begin if self.relative_to == "observation" or not poses else poses[-1]
            if self.axes == TOOL:
                poses.append(previous * change)
            else:
                position = previous.translation + change.translation
                poses.append(pin.SE3(change.rotation @ previous.rotation, position))
        return poses

    def row(self, pose: Any, begin: Any, seen: Any = None) -> np.ndarray:
        """The row, float64 [3 + r], that asks for a pose (SE3) from `begin`, the inverse of `poses`. What is
        relative to the observation differs by chunk: here it is the pose itself or, about the tool's axes and
        with the pose by tf of the state (`seen`), as far from that as it is from `begin`."""
        if seen is not None and (self.relative_to, self.axes) == ("observation", TOOL):
            pose = seen * begin.actInv(pose)
        position, rotation = pose.translation, pose.rotation
        if self.relative_to in ("absolute", "observation"):
            rotation = rotation @ matrix(np.array(self.zero), "rpy").T
        elif self.axes == TOOL:
            change = begin.actInv(pose)
            position, rotation = change.translation, change.rotation
        else:
            position, rotation = position - begin.translation, rotation @ begin.rotation.T
        return np.concatenate([position, numbers(rotation, self.rotation)]) / self._units

    @property
    def _units(self) -> np.ndarray:
        angles = self.rad if self.rotation in ("rpy", "axis_angle") else 1.0
        return np.array([self.m] * 3 + [angles] * len(AXES[self.rotation]))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "libero": {
        "rotation": "axis_angle",
        "state": "axis_angle",
        "relative_to": "measured",
        "axes": BASE,
        "m": 0.05,
        "rad": 0.5,
    },
    "bridge": {
        "rotation": "rpy",
        "state": "rpy",
        "relative_to": "commanded",
        "axes": BASE,
        "zero": (0.0, np.pi / 2, 0.0),
    },
    "droid": {
        "rotation": "rpy",
        "state": JOINTS,
        "relative_to": "measured",
        "axes": BASE,
        "m": 0.075,
        "rad": 0.15,
    },
    "umi": {"rotation": _ROWS, "state": _ROWS, "relative_to": "observation", "axes": TOOL},
    "groot": {"rotation": _ROWS, "state": _ROWS, "relative_to": "observation", "axes": TOOL},
    "xvla": {"rotation": _COLUMNS, "state": _COLUMNS, "relative_to": "absolute", "axes": BASE},
}
"""Conventions of others, by name; every key may be written beside it."""
