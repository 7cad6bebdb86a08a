"""The truth about the scene at one instant, as plain floats: joints, blocks, pads, and what the gripper
holds.

The expert and the scoring need it hundreds of times per label, so a View is built from one flat copy of qpos
and holds no arrays. `held` uses only geometry (the block lies between closed fingers), not contact forces. It
is therefore a function of the configuration alone, and visible in an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vla_accel_ros.sim import kinematics
from vla_accel_ros.sim.kinematics import Pose

BLOCKS = ("red", "green", "blue")
PADS = ("yellow", "white")
BLOCK_HALF_M = 0.02
PAD_RADIUS_M = 0.045
READY_HEIGHT_M = 0.05  # height of the grasp-ready point above the block's centre: 3 cm above its top face


class BlockPose(NamedTuple):
    """Centre of a block in the base frame [m] and its yaw [rad], folded into [-pi/4, pi/4) by its
    symmetry."""

    x: float
    y: float
    z: float
    yaw: float


def fold_yaw(yaw: float) -> float:
    """The equivalent yaw of a square block in [-pi/4, pi/4)."""
    return (yaw + math.pi / 4) % (math.pi / 2) - math.pi / 4


def _block_pose(q: Sequence[float]) -> BlockPose:
    x, y, z, w, i, j, k = q
    # Yaw of whichever body axis lies flattest, so that a tumbled cube still has one.
    axes = (
        (1 - 2 * (j * j + k * k), 2 * (i * j + w * k), 2 * (i * k - w * j)),
        (2 * (i * j - w * k), 1 - 2 * (i * i + k * k), 2 * (j * k + w * i)),
        (2 * (i * k + w * j), 2 * (j * k - w * i), 1 - 2 * (i * i + j * j)),
    )
    flat = axes[0] if abs(axes[0][2]) < 0.3 else min(axes, key=lambda axis: abs(axis[2]))
    return BlockPose(x, y, z, fold_yaw(math.atan2(flat[1], flat[0])))


@dataclass(frozen=True)
class View:
    """The scene at one instant.

    joints: the six joint positions [rad], in kinematics.JOINTS order.
    blocks: colour -> BlockPose; pads: colour -> (x, y) of the pad's centre [m].
    """

    joints: tuple[float, ...]
    blocks: Mapping[str, BlockPose]
    pads: Mapping[str, tuple[float, float]]

    @classmethod
    def from_qpos(cls, qpos: Sequence[float], pads: Mapping[str, tuple[float, float]]) -> View:
        """From MuJoCo's flat qpos [28]: six joints, the mirror finger, then seven numbers per block."""
        blocks = {name: _block_pose(qpos[7 + 7 * i : 14 + 7 * i]) for i, name in enumerate(BLOCKS)}
        return cls((*qpos[:5], 0.5 * (qpos[5] + qpos[6])), blocks, pads)

    @cached_property
    def tip(self) -> Pose:
        """Pose of the gripper tip."""
        return kinematics.forward(*self.joints[:5])

    @property
    def gripper(self) -> float:
        """Mean opening of the two fingers [rad]."""
        return self.joints[5]

    @cached_property
    def held(self) -> str | None:
        """Colour of the block between the closed fingers, or None."""
        if not 0.28 <= self.gripper <= 0.395:
            return None
        for name in self.blocks:
            along, lateral, across = self.in_gripper(name)
            if -0.035 <= along <= 0.012 and abs(lateral) <= 0.022 and abs(across) <= 0.012:
                return name
        return None

    def in_gripper(self, block: str) -> tuple[float, float, float]:
        """Offset of a block's centre from the tip [m]: along the gripper's axis, sideways, and across the
        fingers."""
        pan, lift, elbow, flex, roll, _ = self.joints
        hand = lift + elbow + flex
        sp, cp, sh, ch, sr, cr = (
            math.sin(pan), math.cos(pan), math.sin(hand), math.cos(hand), math.sin(roll), math.cos(roll)
        )  # fmt: skip
        pose, tip = self.blocks[block], self.tip
        dx, dy, dz = pose.x - tip.x, pose.y - tip.y, pose.z - tip.z
        along = dx * sh * cp + dy * sh * sp + dz * ch
        flat_x = dx * ch * cp + dy * ch * sp - dz * sh
        flat_y = -dx * sp + dy * cp
        return along, cr * flat_x + sr * flat_y, -sr * flat_x + cr * flat_y

    def on_pad(self, block: str, pad: str, radius_m: float = PAD_RADIUS_M) -> bool:
        """Whether the block stands on the table with its centre within radius_m of the pad's centre."""
        pose, (x, y) = self.blocks[block], self.pads[pad]
        return pose.z < BLOCK_HALF_M + 0.006 and math.hypot(pose.x - x, pose.y - y) <= radius_m

    def ready_offset(self, block: str) -> tuple[float, float]:
        """(horizontal, vertical) distance [m] of the tip from the grasp-ready point above the block."""
        pose, tip = self.blocks[block], self.tip
        return math.hypot(tip.x - pose.x, tip.y - pose.y), tip.z - (pose.z + READY_HEIGHT_M)
