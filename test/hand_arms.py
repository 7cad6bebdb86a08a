"""Two arms by their published Denavit-Hartenberg tables: a URDF, forward kinematics that shares nothing
with the package's, and contracts of their hands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vla_accel_ros.contract.contract import Contract

PI = np.pi
# UR5e (standard): d, a, alpha of each joint. Panda (modified, Craig): a, d, alpha before each joint.
UR5E = [
    (0.1625, 0.0, PI / 2),
    (0.0, -0.425, 0.0),
    (0.0, -0.3922, 0.0),
    (0.1333, 0.0, PI / 2),
    (0.0997, 0.0, -PI / 2),
    (0.0996, 0.0, 0.0),
]
PANDA = [
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -PI / 2),
    (0.0, 0.316, PI / 2),
    (0.0825, 0.0, PI / 2),
    (-0.0825, 0.384, -PI / 2),
    (0.0, 0.0, PI / 2),
    (0.088, 0.0, PI / 2),
]
FLANGE_M = 0.107
PANDA_RANGES = [
    (-2.8973, 2.8973),
    (-1.7628, 1.7628),
    (-2.8973, 2.8973),
    (-3.0718, -0.0698),
    (-2.8973, 2.8973),
    (-0.0175, 3.7525),
    (-2.8973, 2.8973),
]


def turn_x(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1.0]])


def turn_z(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])


def shift(x: float, z: float) -> np.ndarray:
    moved = np.eye(4)
    moved[0, 3], moved[2, 3] = x, z
    return moved


def ur5e(angles: np.ndarray) -> np.ndarray:
    """The pose, float64 [4, 4], of the UR5e's flange."""
    pose = np.eye(4)
    for (d, a, alpha), angle in zip(UR5E, angles):
        pose = pose @ turn_z(angle) @ shift(0.0, d) @ shift(a, 0.0) @ turn_x(alpha)
    return pose


def panda(angles: np.ndarray) -> np.ndarray:
    """The pose of the Panda's flange."""
    pose = np.eye(4)
    for (a, d, alpha), angle in zip(PANDA, angles):
        pose = pose @ turn_x(alpha) @ shift(a, 0.0) @ turn_z(angle) @ shift(0.0, d)
    return pose @ shift(0.0, FLANGE_M)


def _origin(xyz: object, roll: float) -> str:
    x, y, z = (f"{v:.9f}" for v in np.asarray(xyz, float))
    return f'<origin xyz="{x} {y} {z}" rpy="{roll:.12f} 0 0"/>'


def _urdf(origins: list[str], flange: str, ranges: list[tuple[float, float]]) -> str:
    links = "".join(f'<link name="l{i}"/>' for i in range(len(origins) + 1))
    joints = "".join(
        f'<joint name="j{i + 1}" type="revolute"><parent link="l{i}"/><child link="l{i + 1}"/>{origin}'
        f'<axis xyz="0 0 1"/><limit lower="{low}" upper="{high}" velocity="3" effort="9"/></joint>'
        for i, (origin, (low, high)) in enumerate(zip(origins, ranges))
    )
    last = f"l{len(origins)}"
    finger = (
        f'<link name="finger"/><joint name="finger_joint" type="prismatic"><parent link="{last}"/>'
        '<child link="finger"/><axis xyz="0 1 0"/>'
        '<limit lower="0" upper="0.04" velocity="0.2" effort="9"/></joint>'
    )
    tip = (
        f'<link name="tool0"/><joint name="flange" type="fixed"><parent link="{last}"/><child link="tool0"/>'
        f"{flange}</joint>"
    )
    return f'<robot name="arm">{links}{joints}{finger}{tip}</robot>'


def ur5e_urdf() -> str:
    """A URDF of the same arm: joints j1..j6, links l0..l6 and tool0, a gripper finger_joint."""
    behind = [_origin((a, 0, d), alpha) for d, a, alpha in UR5E]
    return _urdf([_origin((0, 0, 0), 0.0), *behind[:-1]], behind[-1], [(-2 * PI, 2 * PI)] * 6)


def panda_urdf() -> str:
    """The same of the Panda: j1..j7."""
    before = [_origin(turn_x(alpha)[:3, :3] @ (a, 0, d), alpha) for a, d, alpha in PANDA]
    return _urdf(before, _origin((0, 0, FLANGE_M), 0.0), PANDA_RANGES)


HAND = """\
robot: arm
actions: hands
urdf: arm.urdf
acceleration: 10
cameras:
  top: {{topic: camera/top/image_raw, image: base_0_rgb, rate_hz: 30, max_age_s: 0.2}}
max_skew_s: 0.05
joint_states: {{topic: joint_states, rate_hz: 100, max_age_s: 0.1}}
hands:
  arm: {{{hand}base: l0, tip: tool0, linear: 0.5, angular: 1.5}}
joints:
{joints}
  - {{name: finger_joint, {finger}}}
controllers:
  - {{topic: arm/joint_trajectory, joints: [{names}, finger_joint]}}
chunk: {{step_dt_s: 0.05, max_age_s: 0.6}}
"""
EXPLICIT = "rotation: rpy, state: rpy, relative_to: absolute, "
FINGER = "acceleration: 2"


def text(hand: str = EXPLICIT, finger: str = FINGER, joints: int = 6) -> str:
    names = [f"j{i + 1}" for i in range(joints)]
    lines = "\n".join(f"  - {{name: {name}}}" for name in names)
    return HAND.format(hand=hand, finger=finger, joints=lines, names=", ".join(names))


def load(folder: Path, written: str, urdf: str = "") -> Contract:
    (folder / "arm.urdf").write_text(urdf or (panda_urdf() if "name: j7" in written else ur5e_urdf()))
    file = folder / "robot.yaml"
    file.write_text(written)
    return Contract.load(file)


def with_shapes(urdf: str) -> str:
    """The UR5e with a capsule's place in forearm and upper arm, a box as base and a ball as hand."""
    shapes = {
        "l0": ("0 0 0.05", '<box size="0.3 0.3 0.1"/>'),
        "l2": ("-0.21 0 0.13", '<box size="0.3 0.08 0.08"/>'),
        "l3": ("-0.2 0 0.02", '<box size="0.3 0.07 0.07"/>'),
        "l6": ("0 0 0", '<sphere radius="0.05"/>'),
    }
    for link, (xyz, shape) in shapes.items():
        collision = f'<collision><origin xyz="{xyz}"/><geometry>{shape}</geometry></collision>'
        urdf = urdf.replace(f'<link name="{link}"/>', f'<link name="{link}">{collision}</link>')
    return urdf
