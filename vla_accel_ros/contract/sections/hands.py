"""The section `hands` of a contract: hands that a policy knows by their pose instead of their joints.

    actions: hands
    urdf: robot.urdf
    hands:
      arm: {preset: libero, base: base_link, tip: tool0, linear: 0.5, angular: 1.5}

A hand takes the place of its first joint in the rows of chunks and, unless `state: joints`, in the state. The
other joints of `joints`, such as a gripper, stay as they are. With `beside: true` (GR00T's DROID) all joints
do: the pose is in front of them, and the joints' targets are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vla_accel_ros.contract.files.fields import Fields
from vla_accel_ros.contract.parts import LONGEST_AGE_S, NAME, NAME_FORM, Joint
from vla_accel_ros.contract.sections.readers import RobotLimits
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.collisions import Collisions
from vla_accel_ros.control.kinematics.hand import BASE, JOINTS, PRESETS, RELATIVE_TO, TOOL, Box, Hand, Tf
from vla_accel_ros.control.kinematics.rotations import AXES, matrix, pinocchio
from vla_accel_ros.control.limits.joint_limits import JointLimits

_LINK = r"\S+"
OPPOSITE = "opposite"
"""Of a pair of fingers, the second."""


def read_hands(fields: Fields, max_age_s: float) -> tuple[Hand, ...]:
    """Read the section. max_age_s: of a pose by tf, unless it has its own."""
    return tuple(_hand(name, each, max_age_s) for name, each in fields.named("hands", NAME, NAME_FORM))


def _hand(name: str, fields: Fields, max_age_s: float) -> Hand:
    preset: Mapping[str, Any] = {}
    if fields.has("preset"):
        preset = PRESETS[fields.choice("preset", tuple(PRESETS))]

    def choice(key: str, choices: tuple[str, ...]) -> str:
        given = {"default": preset[key]} if key in preset else {}
        return str(fields.choice(key, choices, **given))

    relative_to = choice("relative_to", RELATIVE_TO)
    hand = Hand(
        name,
        base=fields.text("base", _LINK, "a link such as base_link"),
        tip=fields.text("tip", _LINK, "a link such as tool0"),
        rotation=choice("rotation", tuple(AXES)),
        state=choice("state", (JOINTS, *AXES)),
        relative_to=relative_to,
        axes=choice("axes", (BASE, TOOL)) if relative_to != RELATIVE_TO[0] else BASE,
        linear=fields.number("linear", above=0.0),
        angular=fields.number("angular", above=0.0),
        m=fields.number("m", above=0.0, default=preset.get("m", 1.0)),
        rad=fields.number("rad", above=0.0, default=preset.get("rad", 1.0)),
        zero=_three(fields.numbers("zero", 3)) if fields.has("zero") else preset.get("zero", (0.0,) * 3),
        box=_box(fields.child("box")) if fields.has("box") else None,
        beside=fields.flag("beside") if fields.has("beside") else False,
    )
    if fields.choice("state_by", (JOINTS, "tf"), JOINTS) == "tf":
        tf = Tf(
            fields.text("tf_base", _LINK, "a frame such as base_link", hand.base),
            fields.text("tf_tip", _LINK, "a frame such as tool0", hand.tip),
            fields.number("tf_max_age_s", above=0.0, most=LONGEST_AGE_S, default=max_age_s),
        )
        hand = replace(hand, tf=tf)
        if hand.state == JOINTS:
            fields.refuse("state_by", "tf", "is for a pose, and state is joints", "remove it, or write state")
    fields.close()
    return hand


def _three(values: tuple[float, ...]) -> tuple[float, float, float]:
    x, y, z = values
    return x, y, z


def _box(fields: Fields) -> Box:
    box = Box(_three(fields.numbers("lower", 3)), _three(fields.numbers("upper", 3)))
    if any(low >= high for low, high in zip(box.lower, box.upper)):
        fields.refuse("lower", list(box.lower), f"is not below upper = {list(box.upper)}", "swap or fix them")
    fields.close()
    return box


def make_arms(
    file: Fields, hands: Sequence[Hand], description: str, joints: Sequence[Joint]
) -> tuple[tuple[Hand, Arm], ...]:
    """Each hand with its arm; none after a mistake."""
    arms: list[tuple[Hand, Arm]] = []
    if not (hands and all(map(file.valid, ("joints", "hands", "urdf")))):
        return ()
    names, limits = [joint.name for joint in joints], JointLimits.of(joints)
    for hand in hands:
        try:
            arm = Arm(description, names, limits, hand.base, hand.tip)
        except ValueError as problem:
            file.refuse(f"hands.{hand.name}", hand.tip, "cannot be moved", str(problem))
            continue
        both = [(other.name, n) for other, theirs in arms for n in arm.joints if n in theirs.joints]
        if both:
            file.refuse(
                f"hands.{hand.name}", hand.tip, f"shares {both[0][1]} with {both[0][0]}", "fix the links"
            )
        arms.append((hand, arm))
    return tuple(arms)


def read_collisions(
    file: Fields, robot: RobotLimits, joints: Sequence[Joint], home: Mapping[str, float]
) -> Collisions | None:
    """The section `collisions`, which has a margin in metres; None without it, or after a mistake."""
    if not file.has("collisions"):
        return None
    fields = file.child("collisions")
    margin_m = fields.number("margin_m", least=0.0)
    fields.close()
    if robot.file is None:
        file.missing("urdf", "add it: collisions need the robot's description")
    valid = all(map(file.valid, ("joints", "home", "urdf", "collisions")))
    if not valid or robot.file is None or not robot.file.is_file():  # the text alone has no meshes
        return None
    free = {joint.name: home.get(joint.name, (joint.lower + joint.upper) / 2) for joint in joints}
    try:
        return Collisions(robot.text, robot.file.parent, free, margin_m)
    except ValueError as problem:
        file.refuse("collisions", margin_m, "cannot be looked at", str(problem))
        return None


def pose_of(x: np.ndarray) -> Any:
    """The pose (SE3) of x to qw, float64 [7]."""
    return pinocchio().SE3(matrix(x[3:], "quat_xyzw"), x[:3])


class Columns:
    """Which numbers rows and states have. joints: all that is observed [O]. moved: those that have a target.
    first: names of the numbers in front of a row. base: those at its end."""

    def __init__(
        self,
        hands: Sequence[tuple[Hand, Arm]],
        joints: Sequence[Joint],
        moved: Sequence[Joint],
        first: tuple[str, ...],
        base: Sequence[Joint] = (),
    ) -> None:
        self._hands, self._joints = hands, joints
        beside = [hand for hand, _ in hands if hand.beside]
        self.rows: list[tuple[str, Joint | None]] = [(name, None) for name in first]
        self.rows += [(name, None) for hand in beside for name in hand.columns]
        self.rows += [*self._row(moved), *((axis.name, axis) for axis in base)]
        self.state_names = tuple(name for name, *_ in self._state())
        self.plain = all(index is not None and sign == 1.0 for _, index, sign in self._state())

    def state(
        self, positions: np.ndarray, numbers: np.ndarray, poses: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """The state, float64 [..., S], of positions and of the joints' numbers in the policy's units,
        [..., D] each. poses: x to qw by tf of hands, by their streams; those of others follow from joints."""
        if self.plain:
            return numbers
        flat = positions.reshape(-1, positions.shape[-1]), numbers.reshape(-1, numbers.shape[-1])
        states = [self._one(*row, poses) for row in zip(*flat)]
        return np.array(states).reshape(*positions.shape[:-1], len(self.state_names))

    def _one(
        self, positions: np.ndarray, numbers: np.ndarray, poses: Mapping[str, np.ndarray]
    ) -> list[float]:
        values: dict[str, float] = {}
        for hand, arm in self._hands:
            if hand.stream in poses:
                pose = pose_of(poses[hand.stream])
            elif hand.state_columns:
                pose = arm.pose(positions[arm.columns])
            else:
                continue
            values |= zip(hand.state_columns, hand.observed(pose))
        return [values[n] if i is None else sign * numbers[i] for n, i, sign in self._state()]

    def _row(self, moved: Sequence[Joint]) -> Iterator[tuple[str, Joint | None]]:
        names = [joint.name for joint in self._joints]
        owners = {name: hand for hand, arm in self._hands if not hand.beside for name in arm.joints}
        for joint in self._joints:
            hand = owners.get(joint.name)
            if hand is None:
                if joint in moved:
                    yield joint.name, joint
            elif names.index(joint.name) == min(names.index(n) for n in names if owners.get(n) is hand):
                yield from ((name, None) for name in hand.columns)

    def _state(self) -> Iterator[tuple[str, int | None, float]]:
        """Each number: its name, the joint that it is of (None: of a hand), and its sign."""
        posed = [(hand, arm) for hand, arm in self._hands if hand.state_columns]
        yield from ((name, None, 1.0) for hand, _ in posed if hand.beside for name in hand.state_columns)
        owners = {name: (hand, arm) for hand, arm in posed if not hand.beside for name in arm.joints}
        for index, joint in enumerate(self._joints):
            if joint.name not in owners:
                yield joint.name, index, 1.0
                if joint.pair:
                    yield f"{joint.name}.{OPPOSITE}", index, -1.0
                continue
            hand, arm = owners[joint.name]
            if index == arm.columns.min():
                yield from ((name, None, 1.0) for name in hand.state_columns)
