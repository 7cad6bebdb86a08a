"""Closed-form kinematics of the simulated arm: joint angles to gripper pose and back.

The three flex joints turn about parallel axes, so the arm is a planar three-link chain in the vertical plane
that shoulder_pan selects; inverse kinematics is one law of cosines, always with the elbow up. Plain floats
and `math`, because the expert calls this thousands of times per label. Link lengths repeat scene.xml; a test
compares the two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
LOWER = (-1.6, -1.6, 0.0, -1.8, -2.0, 0.0)  # [rad], as in scene.xml
MIRROR = (-1, 1, 1, 1, -1, 1)  # joint signs of the pose seen in a left-right mirror
UPPER = (1.6, 1.6, 2.6, 2.2, 2.0, 1.0)

SHOULDER_FORWARD = 0.03  # [m] from the pan axis to the lift axis
SHOULDER_HEIGHT = 0.13
UPPER_ARM = 0.165
FOREARM = 0.165
HAND = 0.15  # wrist_flex axis to the point between the finger tips

GRIPPER_OPEN = 0.62  # [rad], fingers 8 cm apart
GRIPPER_CLOSED = 0.12  # target that squeezes a block
GRIPPER_AT_BLOCK = 0.365  # where the fingers stop on a 4 cm block


class Pose(NamedTuple):
    """Gripper pose: tip position in the base frame [m]; pitch 0 = pointing down, positive = tip outward; roll
    [rad]."""

    x: float
    y: float
    z: float
    pitch: float
    roll: float


class Unreachable(ValueError):
    """The pose is outside the arm's workspace."""


def forward(pan: float, lift: float, elbow: float, flex: float, roll: float) -> Pose:
    """Pose of the gripper tip for five joint angles [rad]."""
    fore = lift + elbow
    hand = fore + flex
    radius = SHOULDER_FORWARD + UPPER_ARM * math.sin(lift) + FOREARM * math.sin(fore) + HAND * math.sin(hand)
    z = SHOULDER_HEIGHT + UPPER_ARM * math.cos(lift) + FOREARM * math.cos(fore) + HAND * math.cos(hand)
    return Pose(radius * math.cos(pan), radius * math.sin(pan), z, math.pi - hand, roll)


def planar(radius: float, z: float, pitch: float) -> tuple[float, float, float]:
    """(lift, elbow, flex) [rad] that put the tip at `radius` from the pan axis and height `z` [m] with this
    pitch.

    Raises Unreachable when the wrist would be beyond the arm's reach or inside its folded elbow.
    """
    hand = math.pi - pitch
    forward_m = radius - SHOULDER_FORWARD - HAND * math.sin(hand)
    up_m = z - SHOULDER_HEIGHT - HAND * math.cos(hand)
    squared = forward_m * forward_m + up_m * up_m
    cosine = (squared - UPPER_ARM**2 - FOREARM**2) / (2 * UPPER_ARM * FOREARM)
    if not -0.86 <= cosine <= 1.0:
        raise Unreachable(
            f"gripper pose radius {radius:.3f} m, height {z:.3f} m, pitch {pitch:.3f} rad is out of reach; "
            "ask for a point 0.12 to 0.33 m from the base."
        )
    elbow = math.acos(cosine)
    lift = math.atan2(forward_m, up_m) - math.atan2(
        FOREARM * math.sin(elbow), UPPER_ARM + FOREARM * math.cos(elbow)
    )
    return lift, elbow, hand - lift - elbow


def inverse(pose: Pose) -> tuple[float, float, float, float, float]:
    """The five joint angles [rad] of a gripper pose, elbow up. Raises Unreachable."""
    lift, elbow, flex = planar(math.hypot(pose.x, pose.y), pose.z, pose.pitch)
    return math.atan2(pose.y, pose.x), lift, elbow, flex, pose.roll
