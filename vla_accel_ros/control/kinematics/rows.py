"""A chunk's rows as targets of joints, before anything else sees them.

What a row of a hand or of velocities means depends on where the robot was at the observation, as measured or
as commanded by then; only what moves the robot knows both. The rest of a chunk's way (plausibility, limits,
blending, stops) is that of joint targets. Rows that are past are not solved. A chunk ends before the first
pose that its arm does not reach or its box does not have, and is refused if nothing of it is left to execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.hand import OUT_M, Hand
from vla_accel_ros.control.kinematics.led import LedHand
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.types import Chunk


@dataclass(frozen=True)
class Layout:
    """Where the numbers of rows are. hands: each with its arm. names: of the columns [A]. joints: those that
    are moved [D]. velocities: those whose column is a velocity (rad/s or m/s). others: number of columns at
    the end that are none of joints. led: the hand that is moved by velocities."""

    hands: Sequence[tuple[Hand, Arm]]
    names: tuple[str, ...]
    joints: tuple[str, ...]
    velocities: frozenset[str] = frozenset()
    others: int = 0
    led: tuple[Hand, Arm] | None = None


class Rows:
    """layout, limits: of the joints that are moved. whole: also rows that are past are executed. led: the
    hand that is moved by velocities. Attribute `cut`: why the last chunk was cut, else empty."""

    def __init__(
        self, layout: Layout, limits: JointLimits, whole: bool = False, led: LedHand | None = None
    ) -> None:
        self._layout, self._limits, self._whole, self.cut = layout, limits, whole, ""
        place = {name: column for column, name in enumerate(layout.names)}
        self._led, self._led_columns = led, [place[name] for name in led.hand.columns] if led else []
        self._hands = [
            (hand, arm, [place[name] for name in hand.columns])
            for hand, arm in layout.hands
            if not hand.beside
        ]
        plain = [(place[name], i) for i, name in enumerate(layout.joints) if name in place]
        self._plain = [(i, k) for i, k in plain if layout.joints[k] not in layout.velocities]
        self._velocities = [(i, k) for i, k in plain if layout.joints[k] in layout.velocities]

    def targets(
        self,
        chunk: Chunk,
        now_ns: int,
        measured: np.ndarray,
        commanded: np.ndarray,
        observed: np.ndarray | None = None,
    ) -> Chunk:
        """A chunk of the twists of a hand that is led, joint targets, and `others` as they are, float64
        [h, A], h <= H. now_ns: rows that were due before are not solved. measured, commanded: float64 [D]
        joints at the observation; observed: all of the robot's, as measured; None if these are all.

        Raises ValueError if the chunk has other columns, a number that is not finite or a rotation that is
        none, or its first pose from now on is out of reach.
        """
        rows = np.asarray(chunk.actions, np.float64)
        names = self._layout.names
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(names):
            raise ValueError(
                f"chunk actions have shape {rows.shape}: give H x {len(names)} for {', '.join(names)}"
            )
        if not np.isfinite(rows).all():
            row, column = np.argwhere(~np.isfinite(rows))[0]
            raise ValueError(f"chunk has {rows[row, column]} for {names[column]} in action {row}")
        rows = rows[: chunk.executed]
        joints = np.tile(commanded, (len(rows), 1))
        for column, joint in self._plain:
            joints[:, joint] = rows[:, column]
        for column, joint in self._velocities:
            way = np.cumsum(rows[:, column]) * chunk.step_dt_s
            low, high = self._limits.lower[joint], self._limits.upper[joint]
            joints[:, joint] = np.clip(commanded[joint] + way, low, high)
        ahead = 0 if self._whole else sum(chunk.due_ns(i) <= now_ns for i in range(len(rows)))
        self.cut = ""
        for hand, arm, columns in self._hands:
            begin = arm.pose((commanded if hand.relative_to == "commanded" else measured)[arm.columns])
            poses = hand.poses(rows[:, columns], begin)[ahead:]
            solved = arm.solve(poses, commanded[arm.columns])
            reason = arm.why() if len(solved) < len(poses) else ""
            inside = self._inside(hand, arm, begin, commanded[arm.columns], solved, chunk.step_dt_s)
            if inside < len(solved):
                solved, goal = solved[:inside], np.round(poses[inside].translation, 3).tolist()
                reason = f"{goal} m, or a stop on the way to it, is out of its box"
            if reason:
                self._cut(chunk, hand, ahead, ahead + len(solved), reason)
                rows, joints = rows[: ahead + len(solved)], joints[: ahead + len(solved)]
            joints[ahead:, arm.columns] = solved[: len(joints) - ahead]
            if ahead < len(joints):
                joints[:ahead, arm.columns] = joints[ahead, arm.columns]
        twists = np.empty((len(rows), 0))
        if self._led is not None:
            late_s = 0.0 if self._whole else max((now_ns - chunk.stamp_ns) * 1e-9, 0.0)
            where = measured if observed is None else observed
            twists, reason = self._led.twists(rows[:, self._led_columns], chunk, where, late_s)
            if reason:
                self._cut(chunk, self._led.hand, ahead, len(twists), reason)
                rows, joints = rows[: len(twists)], joints[: len(twists)]
            twists = twists[: len(rows)]
        return replace(
            chunk,
            actions=np.hstack([twists, joints, rows[:, len(names) - self._layout.others :]]),
            update_magnitudes=np.asarray(chunk.update_magnitudes)[: len(joints)],
            execution_horizon=None,
        )

    def _cut(self, chunk: Chunk, hand: Hand, ahead: int, count: int, reason: str) -> None:
        """Raises ValueError if nothing is left of the chunk."""
        self.cut = f"action {count} of {hand.name}: {reason}"
        if count <= ahead:
            raise ValueError(f"chunk {chunk.request_id}: {self.cut}")

    def _inside(
        self, hand: Hand, arm: Arm, begin: Any, seed: np.ndarray, solved: np.ndarray, step_dt_s: float
    ) -> int:
        """How many rows there are before one that is further out of the hand's box than the begin, or from
        which the hand would come to rest there."""
        if hand.box is None or not len(solved):
            return len(solved)
        speeds = np.diff(np.vstack([seed, solved]), axis=0) / step_dt_s
        speeds = np.clip(speeds, -arm.limits.velocity, arm.limits.velocity)
        stop_s = (np.abs(speeds) / arm.limits.acceleration).max(axis=1)[:, None]
        allowed = np.maximum(hand.box.beyond(begin.translation), OUT_M)
        out = np.zeros(len(solved), bool)
        for rows in (solved, solved + speeds * stop_s / 2):
            tips = np.array([arm.pose(row).translation for row in rows])
            out |= (hand.box.beyond(tips) > allowed).any(axis=1)
        return int(out.argmax()) if out.any() else len(solved)
