"""A random adversary of policies that move a hand: `python test/control/adversary_of_hands.py --events N`.

It plays what adversary.py does with a UR5e or a Panda whose chunks are poses, of every meaning and form of
rotation. Where the hand was is judged by forward kinematics of hand_arms.py: its speed, and its box. Not
judged are the motions of others, the instants that executed.py spares (a controller's own step), the box on
ways home, and that the hand is out of its box where others have put it: only that it goes no further.
"""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from adversary import main
from adversary_faults import FAULTS, Episode
from adversary_inputs import HOLD_SLACK_NS
from adversary_scene import EPOCH, Case, Robot
from executed import Broken
from hand_arms import PANDA_RANGES, panda, panda_urdf, ur5e, ur5e_urdf

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.watchdog import HOMING
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.hand import BASE, JOINTS, RELATIVE_TO, TOOL, Box, Hand
from vla_accel_ros.control.kinematics.rotations import AXES, numbers, pinocchio
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs import on_arrival
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.types import Chunk

MIDDLE = {
    "ur5e": np.array([0.0, -1.2, 1.8, -2.0, -1.57, 0.0]),
    "panda": np.array([0.0, -0.5, 0.0, -2.2, 0.0, 1.8, 0.7]),
}
FORWARD = {"ur5e": ur5e, "panda": panda}
RANGES = {"ur5e": [(-2 * np.pi, 2 * np.pi)] * 6, "panda": PANDA_RANGES}
LOOK_NS = 4_000_000
KINDS_OF_HANDS = ("joint_trajectory", "joint_trajectory", "forward_command", "servo_joint")
TOLERANCE = 1.001
SERVO = 1.05
"""The same of MoveIt Servo: the node knows of its joints where they were measured."""
STOPS = 1.5
"""How many times as fast as it may a hand may be in a stop after the clock was set; joints are judged so,
too."""


@cache
def chain(arm: str) -> Arm:
    """Of the package, which the judge does not use."""
    low, high = np.array(RANGES[arm]).T
    names = tuple(f"j{i + 1}" for i in range(len(low)))
    urdf = ur5e_urdf() if arm == "ur5e" else panda_urdf()
    return Arm(urdf, names, JointLimits(low, high, np.ones_like(low), np.ones_like(low)), "l0", "tool0")


def moved(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How far hands went and turned between poses, float64 [2, N]."""
    turned = np.swapaxes(begins[:, :3, :3], 1, 2) @ ends[:, :3, :3]
    cosine = (np.trace(turned, axis1=1, axis2=2) - 1.0) / 2.0
    sine = np.linalg.norm(turned - np.swapaxes(turned, 1, 2), axis=(1, 2)) / np.sqrt(8.0)
    way = np.linalg.norm(ends[:, :3, 3] - begins[:, :3, 3], axis=1)
    return np.stack([way, np.arctan2(sine, cosine)])


class EpisodeOfHands(Episode):
    """With what is above."""

    def __init__(self, case: Case) -> None:
        self.homing: list[tuple[int, int]] = []  # when what was sent of ways home is executed
        self.wheres: list[np.ndarray] = []  # where the joints were at each tick
        rng = self._of_hand = random.Random(f"hand {case.seed}")
        self._arm = rng.choice(tuple(MIDDLE))
        relative_to, axes = rng.choice(RELATIVE_TO), rng.choice((BASE, TOOL))
        begin = FORWARD[self._arm](MIDDLE[self._arm])[:3, 3]
        reach = np.array([rng.uniform(0.1, 0.4) for _ in range(3)])
        box = Box(tuple(begin - reach), tuple(begin + reach)) if rng.random() < 0.5 else None
        self._hand = Hand(
            "arm",
            "l0",
            "tool0",
            rotation=rng.choice(tuple(AXES)),
            state=JOINTS,
            relative_to=relative_to,
            axes=axes,
            linear=rng.choice((0.1, 0.3, 1.0)),
            angular=rng.choice((0.5, 1.5, 3.0)),
            box=box,
        )
        faults = tuple(FAULTS) if case.faults is None else case.faults
        super().__init__(replace(case, faults=faults, kind=case.kind or rng.choice(KINDS_OF_HANDS)))
        self.where = MIDDLE[self._arm] + self.array.uniform(-0.2, 0.2, len(self.where))
        self.controller.hold(self.where.copy(), 0)

    _may_grip = False

    def _robot(self, kind: str) -> Robot:
        robot, middle = super()._robot(kind), MIDDLE[self._arm]
        low, high = np.array(RANGES[self._arm]).T
        d = len(middle)
        limits = JointLimits(low, high, self.array.uniform(0.8, 3.0, d), self.array.uniform(4.0, 30.0, d))
        return replace(robot, joints=tuple(f"j{i + 1}" for i in range(d)), limits=limits, home=middle)

    def _contract(self) -> Contract:
        contract = replace(super()._contract(), actions="hands", hands=((self._hand, chain(self._arm)),))
        if self.robot.stamped:
            return contract
        hands = contract.eased("none of its joints", on_arrival.SPEED, on_arrival.ACCELERATION).hands
        return replace(contract, hands=hands)

    def _commanded(self, command: np.ndarray) -> None:
        super()._commanded(command)
        self._goes_home(self.t_ns + round(2.0 * self.robot.period_s * 1e9))
        self.wheres += [self.where.copy()] * (len(self.ticks) - len(self.wheres))

    def _made(self) -> Chunk:
        """Poses about the middle, or steps that go on: slow, fast or, where all is random, out of reach."""
        made = super()._made()
        pin, rng, hand = pinocchio(), self._of_hand, self._hand
        steps = np.arange(1, made.horizon + 1)[:, None]
        age_s = (made.stamp_ns - EPOCH) * 1e-9
        phases = np.concatenate([self.phase, self.phase])[:6]
        t = (age_s + steps * made.step_dt_s) * 0.5 + phases
        share = rng.choice((0.05, 0.2, 0.5)) if hand.relative_to in ("absolute", "observation") else 0.01
        moved = self.amount * share * np.sin(t)
        begin = pin.SE3(FORWARD[self._arm](MIDDLE[self._arm]))
        rows = []
        for row in moved:
            change = pin.SE3(np.asarray(pin.exp3(row[3:])), row[:3])
            pose = begin * change if hand.relative_to == "absolute" else change
            rows.append([*pose.translation, *numbers(pose.rotation, hand.rotation)])
        actions = np.array(rows)
        if self.active("jumps"):
            actions[:, :3] += self.array.uniform(-0.2, 0.2, 3)
        if self.active("wild"):
            actions = self._wild(actions)
        return replace(made, actions=actions.astype(np.float32))

    def _sent(self, trajectory: Trajectory, start_ns: int, stamped: bool) -> None:
        super()._sent(trajectory, start_ns, stamped)
        self._goes_home(self.ends_ns)

    def _goes_home(self, until_ns: int) -> None:
        if HOMING in self.node.holds:
            goes_on = bool(self.homing) and self.homing[-1][1] >= self.t_ns
            begin_ns = self.homing.pop()[0] if goes_on else self.t_ns
            self.homing.append((begin_ns, until_ns))

    def _must_rest(self) -> None:
        """A way home that has not begun ends where it would begin, after a whole approach: that of a slow
        hand takes long."""
        new = self.holding is None
        super()._must_rest()
        if new and self.holding is not None:
            home_ns = max((end for _, end in self.homing), default=0)
            self.holding = max(self.holding[0], home_ns + HOLD_SLACK_NS), 0

    def _judge(self) -> None:
        super()._judge()
        if self.robot.kind == "servo_joint":
            self._judge_velocities()
            return
        if self.robot.kind == "joint_trajectory":
            times, positions = self.controller.path(self.end_ns)
            spared, placed = self.controller.spared + self.foreign, self.controller.own_ns
        else:
            times = np.array([t for t, _ in self.ticks] or [0])
            positions = np.array([p for _, p in self.ticks] or [self.where])
            spared = [(times[max(k - 1, 0)], times[min(k, len(times) - 1)]) for k in self.anew]
            placed = [end for _, end in spared]
        if len(times) < 3:
            return
        looks = np.arange(times[0], times[-1], LOOK_NS)
        joints = np.stack([np.interp(looks, times, column) for column in positions.T], axis=1)
        poses = np.array([FORWARD[self._arm](row) for row in joints])
        step_s = LOOK_NS * 1e-9
        judged = np.ones(len(looks) - 1)
        for windows, share in ((self.controller.eased, 1.0 / STOPS), (spared, 0.0)):
            for begin, end in windows:
                judged[(looks[1:] >= begin) & (looks[:-1] <= end)] = share
        speed, rate = judged * moved(poses[:-1], poses[1:]) / step_s
        self._judge_speeds(looks, speed, rate, TOLERANCE)
        if self._hand.box is not None:
            self._judge_box(looks, poses[:, :3, 3], placed)

    def _judge_velocities(self) -> None:
        """Velocities lead a hand from where the joints are, of which the node knows what it was told."""
        if len(self.ticks) < 3:
            return
        times = np.array([t for t, _ in self.ticks])[: len(self.wheres)]
        forward, step_s = FORWARD[self._arm], 1e-4
        begins = np.array([forward(where) for where in self.wheres])
        ends = np.array([forward(p + v * step_s) for p, (_, v) in zip(self.wheres, self.ticks)])
        speed, rate = moved(begins, ends) / step_s
        self._judge_speeds(times, speed, rate, SERVO)
        if self._hand.box is not None:
            self._judge_box(times, begins[:, :3, 3], [])

    def _judge_speeds(self, times: np.ndarray, speed: np.ndarray, rate: np.ndarray, tolerance: float) -> None:
        for what, values, most in (("hand", speed, self._hand.linear), ("turn", rate, self._hand.angular)):
            if values.max() > tolerance * most:
                at = int(values.argmax())
                by = float(values.max() / most)
                self.broken.append(Broken(f"speed of the {what}", times[at] * 1e-9, by))

    def _judge_box(self, looks: np.ndarray, tips: np.ndarray, placed: list[int]) -> None:
        """The hand is no further out of its box than where others or a way home, which goes straight, last
        left it. placed: when others did."""
        box = self._hand.box
        assert box is not None
        beyond = np.maximum(np.array(box.lower) - tips, tips - np.array(box.upper)).max(axis=1)
        free = self.foreign + self.homing
        ends = [end for _, end in free]
        begins = np.unique(np.searchsorted(looks, [looks[0], *placed, *ends]))
        for begin, end in itertools.pairwise([*begins.tolist(), len(looks)]):
            part = beyond[begin:end].copy()
            for since, until in free:
                part[(looks[begin:end] >= since) & (looks[begin:end] <= until)] = -np.inf
            if len(part) and part.max() > max(1e-3, beyond[begin] + 1e-4):
                at = begin + int(part.argmax())
                self.broken.append(Broken("box of the hand", looks[at] * 1e-9, 1.0 + float(part.max())))


if __name__ == "__main__":
    sys.exit(main(EpisodeOfHands, __doc__))
