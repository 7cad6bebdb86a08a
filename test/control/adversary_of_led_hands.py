"""A random adversary of hands that MoveIt Servo leads: `python test/control/adversary_of_led_hands.py`.

It plays what adversary.py does with servo_twist; the hand's rows are poses of every meaning, and a UR5e is
moved by the twists, through a Jacobian of hand_arms.py. Its tip stays in its box, each twist counted until
the next, and for two periods at most: what goes on without commands is Servo's.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from adversary import main
from adversary_faults import FAULTS, Episode
from adversary_of_hands import MIDDLE, chain
from adversary_scene import ANGULAR, EPOCH, LINEAR, Case, Robot, S
from hand_arms import ur5e
from world import Process, make_joints

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.kinematics.hand import BASE, JOINTS, RELATIVE_TO, TOOL, Box, Hand
from vla_accel_ros.control.kinematics.rotations import AXES, numbers, pinocchio
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.types import Chunk

ARM = tuple(f"j{i + 1}" for i in range(6))
LEFT_OUT = ("other shape",)
"""Rows of another width are refused, whoever is moved by them."""


def jacobian(joints: np.ndarray) -> np.ndarray:
    """Of the tip, float64 [6, 6], along and about the axes of the base."""
    here, columns = ur5e(joints), []
    for step in np.eye(6) * 1e-6:
        pose = ur5e(joints + step)
        spin = (pose[:3, :3] - here[:3, :3]) @ here[:3, :3].T
        columns.append([*(pose[:3, 3] - here[:3, 3]), spin[2, 1], spin[0, 2], spin[1, 0]])
    return np.array(columns).T * 1e6


class EpisodeOfLedHands(Episode):
    """With what is above. Attribute `furthest`: of the tip out of its box [m]."""

    furthest = 0.0

    def __init__(self, case: Case) -> None:
        rng = self._of_hand = random.Random(f"led {case.seed}")
        self._arm = MIDDLE["ur5e"].copy()
        begin = ur5e(self._arm)[:3, 3]
        reach = np.array([rng.uniform(0.05, 0.2) for _ in range(3)])
        self._box = Box(tuple(begin - reach), tuple(begin + reach)) if rng.random() < 0.8 else None
        axes, rotation, relative_to = (
            rng.choice((BASE, TOOL)),
            rng.choice(tuple(AXES)),
            rng.choice(RELATIVE_TO),
        )
        self._hand = Hand(
            "arm", "l0", "tool0", rotation, JOINTS, relative_to, axes, LINEAR, ANGULAR, box=self._box
        )
        self._pace = rng.choice((0.5, 2.0, 5.0))
        faults = tuple(
            name for name in (FAULTS if case.faults is None else case.faults) if name not in LEFT_OUT
        )
        super().__init__(replace(case, faults=faults, kind="servo_twist"))
        self._moved_ns, self._twist = self.t_ns, np.zeros(6)

    def _robot(self, kind: str) -> Robot:
        return replace(super()._robot(kind), joints=("finger",))

    def _contract(self) -> Contract:
        contract, ones = super()._contract(), np.ones(6)
        arm = make_joints(ARM, JointLimits(-7.0 * ones, 7.0 * ones, 9.0 * ones, 90.0 * ones))
        controllers = tuple(
            replace(c, joints=ARM, frame="l0") if c.kind == "servo_twist" else c for c in contract.controllers
        )
        hands = ((self._hand, chain("ur5e")),)
        return replace(
            contract,
            joints=(*arm, *contract.joints),
            controllers=controllers,
            hands=hands,
            actions="hands",
            twist=None,
        )

    def _start(self, go_on: bool = True) -> Process:
        process = super()._start(go_on)
        hear = process.joints

        def joints(names: Any, position: np.ndarray, stamp_ns: int) -> None:
            self._execute()
            hear((*ARM, *names), np.concatenate([self._arm, position]), stamp_ns)

        process.joints = joints  # type: ignore[method-assign]
        return process

    def _commanded(self, command: np.ndarray) -> None:
        self._execute()
        super()._commanded(command)
        self._twist = command.copy()

    def _execute(self) -> None:
        """Go on by the last twist."""
        lasted_s = min((self.t_ns - self._moved_ns) / S, 2.0 * self.robot.period_s)
        if self._twist.any() and lasted_s > 0.0:
            self._arm = self._arm + np.linalg.pinv(jacobian(self._arm), rcond=1e-3) @ self._twist * lasted_s
            if self._box is not None:
                beyond = float(self._box.beyond(ur5e(self._arm)[:3, 3]).max())
                self.furthest = max(self.furthest, beyond)
                if beyond > 1e-3:
                    self._break("box of the hand", 1.0 + beyond)
        if self.t_ns - self._moved_ns > 2.0 * self.robot.period_s * S:
            self._twist = np.zeros(6)
        self._moved_ns = self.t_ns

    def _made(self) -> Chunk:
        made, pin, rng, hand = super()._made(), pinocchio(), self._of_hand, self._hand
        steps = np.arange(1, made.horizon + 1)[:, None]
        t = ((made.stamp_ns - EPOCH) * 1e-9 + steps * made.step_dt_s) * self._pace + np.arange(6)
        share = rng.choice((0.05, 0.2, 0.5)) if hand.relative_to in ("absolute", "observation") else 0.01
        begin, rows = pin.SE3(ur5e(MIDDLE["ur5e"])), []
        for row in self.amount * share * np.sin(t):
            change = pin.SE3(np.asarray(pin.exp3(row[3:])), row[:3])
            pose = begin * change if hand.relative_to == "absolute" else change
            rows.append([*pose.translation, *numbers(pose.rotation, hand.rotation)])
        actions = np.hstack([np.array(rows), made.actions[:, -1:]])
        if self.active("wild"):
            actions = self._wild(actions)
        return replace(made, actions=actions.astype(np.float32))


if __name__ == "__main__":
    sys.exit(main(EpisodeOfLedHands, __doc__))
