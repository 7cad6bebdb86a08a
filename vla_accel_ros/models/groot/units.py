"""States and actions of one embodiment: between a robot's units and the network's -1..1.

A vector is groups of numbers in a fixed order, each mapped from its range in training; a number that did not
move becomes 0. Groups of actions may be relative to the state at the observation: numbers by a difference, a
hand's pose by a displacement in the hand's own frame, which is composed in float64. Relative actions have a
range for every step of a chunk. A pose is x, y, z [m] and the first two rows of a rotation matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_accel_ros.models.processing.ranges import Range

POSE = 9
"""Numbers of a pose."""


@dataclass(frozen=True)
class ActionGroup:
    """Consecutive numbers of an action. actions: their places; state: those of the numbers that they are
    relative to, None = they are absolute. pose: a hand's pose, composed, instead of numbers, added."""

    name: str
    actions: slice
    state: slice | None = None
    pose: bool = False

    @property
    def size(self) -> int:
        """How many they are."""
        return self.actions.stop - self.actions.start


@dataclass(frozen=True)
class Units:
    """state, actions: their ranges in training; size 0 = unknown, numbers pass as they are. groups: of the
    actions. steps: rows of a chunk that are meant for this embodiment. alike: whether states have the same
    groups. gripper: the action from 0 to 1 of which LIBERO's command is made, -1 above a half (open) and 1
    below."""

    state: Range
    actions: Range
    groups: tuple[ActionGroup, ...] = ()
    steps: int | None = None
    alike: bool = False
    gripper: int | None = None

    @property
    def relative(self) -> np.ndarray:
        """bool [D]: which actions are numbers that the state is added to; poses are absolute when they are
        given."""
        mask = np.zeros(self.actions.size, np.bool_)
        for group in self.groups:
            mask[group.actions] = group.state is not None and not group.pose
        return mask

    @property
    def least_state(self) -> int:
        """Numbers that a state must have at least."""
        return max((group.state.stop for group in self.groups if group.state), default=1)

    def to_robot(self, raw: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Actions of the network float32 [H, A] -> absolute float64 [steps, D]; state [D'], not
        normalised."""
        raw = raw[: self.steps, : self.actions.size or None]
        raw = np.clip(raw, -1.0, 1.0) if self.actions.clips else raw
        out = np.asarray(self.actions.unnormalize(raw) if self.actions.size else raw, np.float64)
        for group, origin in self._relatives(out, state):
            moved = out[:, group.actions]
            out[:, group.actions] = _composed(origin, moved) if group.pose else moved + origin
        if self.gripper is not None:
            out[:, self.gripper] = -np.sign(2.0 * out[:, self.gripper] - 1.0)
        return out

    def to_network(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Inverse of to_robot: absolute [h, D] -> float32 [h, D]."""
        out = np.array(actions, np.float64)
        for group, origin in self._relatives(out, state):
            target = out[:, group.actions]
            out[:, group.actions] = _displaced(origin, target) if group.pose else target - origin
        if self.gripper is not None:
            out[:, self.gripper] = 0.5 - 0.5 * out[:, self.gripper]
        return self.actions.normalize(out.astype(np.float32)) if self.actions.size else out.astype(np.float32)

    def _relatives(self, out: np.ndarray, state: np.ndarray) -> list[tuple[ActionGroup, np.ndarray]]:
        """The groups of these actions that are relative, each with what it is relative to."""
        origin, there = np.asarray(state, np.float64), out.shape[1]
        return [(g, origin[g.state]) for g in self.groups if g.state and g.actions.stop <= there]


def rotation(rows: np.ndarray) -> np.ndarray:
    """The first two rows of a rotation matrix [..., 6], made orthonormal -> [..., 3, 3]."""
    first, second = rows[..., :3], rows[..., 3:]
    first = first / np.linalg.norm(first, axis=-1, keepdims=True)
    second = second - (first * second).sum(-1, keepdims=True) * first
    second = second / np.linalg.norm(second, axis=-1, keepdims=True)
    return np.stack((first, second, np.cross(first, second)), axis=-2)


def _composed(hand: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """The poses [H, 9] that these displacements in the frame of the hand [9] lead to."""
    turn = rotation(hand[3:])
    position = hand[:3] + displacement[:, :3] @ turn.T
    return np.concatenate((position, (turn @ rotation(displacement[:, 3:]))[:, :2].reshape(-1, 6)), axis=1)


def _displaced(hand: np.ndarray, poses: np.ndarray) -> np.ndarray:
    """Inverse of _composed."""
    turn = rotation(hand[3:])
    position = (poses[:, :3] - hand[:3]) @ turn
    return np.concatenate((position, (turn.T @ rotation(poses[:, 3:]))[:, :2].reshape(-1, 6)), axis=1)
