"""A random adversary of all that turns chunks into motion: `python test/control/adversary.py --seed N`.

An episode is a robot of some controller kind, limits and parameters, and a few seconds in which everything
that can go wrong does: chunks that are late, early, doubled, reordered, wild, not finite or of another shape;
joints that glitch, fall silent, freeze or are stamped wrongly; clocks that are set; orders of an operator;
processes that stall or start anew. Time is simulated. What the controllers execute meanwhile is judged by
executed.py; a seed makes the same episode again.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from rosless import HOMING, OPERATOR, PASSING, RELEASED, RESTARTED, Parameters, Robot, TrajectoryLogic

from vla_accel_ros.control.chunking.buffer import Mode
from vla_accel_ros.control.following.joint_faults import usual
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.moves import move
from vla_accel_ros.control.trajectory import MotionState, Trajectory
from vla_accel_ros.sim.executed import (
    Broken,
    TrajectoryController,
    judge_path,
    judge_positions,
    judge_velocities,
)
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = S // 1000
EPOCH = 1_000 * S
KINDS = ("joint_trajectory", "forward_command", "servo_joint", "servo_twist")
MODES: tuple[Mode, ...] = ("block", "async", "blend", "rtc")
KEEP_NS = S
HOLD_SLACK_NS = S // 2
NOT_FOLLOWING = "does not follow"


class Ended(Exception):
    """The process, or the episode, has ended while a message was held up."""


class Episode:
    """One robot and its misfortunes. faults: which kinds may come; all when None. chunk_hz: random when
    None. Attribute `table`: what the kinds are."""

    @property
    def table(self) -> dict[str, Callable[[Any, str], None]]:
        return FAULTS

    def __init__(
        self,
        seed: int,
        faults: tuple[str, ...] | None = None,
        kind: str | None = None,
        chunk_hz: int | None = None,
    ) -> None:
        self.rng, self.array = random.Random(seed), np.random.default_rng(seed)
        self.seed, self.events, self.happened = seed, 0, Counter[str]()
        self.moved = 0.0
        self.log: list[str] = []
        rng = self.rng
        self.robot = self._robot(kind or rng.choices(KINDS, (4, 2, 1, 1))[0])
        self.parameters = self._parameters()
        self.faults = tuple(self.table) if faults is None else faults
        self.t_ns, self.offset_ns = 0, EPOCH
        self.end_ns = rng.randint(4, 10) * S
        self.broken: list[Broken] = []
        self._waiting: dict[str, Callable[[], object]] = {}
        limits = self.robot.limits
        self.where = limits.lower + self.array.uniform(0.2, 0.8, len(limits.lower)) * (
            limits.upper - limits.lower
        )
        self.sag = np.zeros(len(limits.lower))
        if self.robot.kind in ("joint_trajectory", "servo_twist") and rng.random() < 0.5:
            self.sag = self.array.uniform(-0.01, 0.01, len(limits.lower))
        self.controller = TrajectoryController(self.robot.joints, self.where.copy(), rng.random() < 0.7)
        self.ticks: list[tuple[int, np.ndarray]] = []
        self.arrivals_ns = self.others_until_ns = 0
        self.sent_ns: dict[tuple[str, ...], int] = {}
        apart = random.Random(f"told {seed}")
        self.told_every_ns, self.told_later_ns = apart.choice((2, 5, 20)) * MS, apart.randint(1, 10) * MS
        self.activated: set[str] = set()  # joints of controllers that have got nothing since
        self.began = self.restarted = self.late = False
        self.anew = [0]
        self.holding: tuple[int, int] | None = None
        self.still: list[tuple[int, int]] = []
        self.quiet_since: int | None = None
        self.newest_chunk_ns = 0
        self.kept: list[Chunk] = []
        self.number = 0
        self.joint_hz, self.chunk_hz = rng.choice((50, 100, 250)), rng.choice((5, 10, 20, 30))
        self.chunk_hz = chunk_hz or self.chunk_hz
        self.horizon, self.step_s = rng.choice((1, 5, 16, 32, 50)), rng.choice((0.01, 1 / 30, 0.05, 0.1))
        self.age_s, self.jitter = rng.uniform(0.02, 0.3), rng.choice((0.0, 0.0, 0.1, 0.4))
        self.delay_of_lead = rng.choice((0.1, 0.5, 1.0, 2.0))
        self.speed, self.phase = self.array.uniform(0.5, 4.0, (2, self._width))
        self.amount = rng.choice((0.1, 0.3, 0.6))
        self.pace = rng.choice((0.3, 1.0, 3.0))
        self.noise = rng.choice((0.0, 0.002, 0.02))
        self.until: dict[str, int] = {}
        self.glitch = np.zeros(len(limits.lower))
        self._felt_ns = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self.node = self._start({})

    def run(self) -> Episode:
        """Play it to its end and judge it."""
        self._every(S // self.joint_hz, self._joints)
        self._every(20 * MS, self._watch)
        self._every(S // self.chunk_hz, self._chunks)
        if self.robot.kind != "joint_trajectory":
            self._every(round(self.robot.period_s * S), self._tick)
        if self.faults:
            self._at(round(self.rng.expovariate(self.pace) * S), self._fault)
        while self._queue and self._queue[0][0] <= self.end_ns:
            self._next()
        self._judge()
        return self

    def _next(self) -> None:
        self.t_ns, _, happen = heapq.heappop(self._queue)
        happen()

    def now_ns(self) -> int:
        """ROS time."""
        return self.t_ns + self.offset_ns

    def active(self, name: str) -> bool:
        """Whether a fault that lasts is there."""
        return self.until.get(name, -1) >= self.t_ns

    def _robot(self, kind: str) -> Robot:
        rng, d = self.rng, 1 if kind == "servo_twist" else self.rng.randint(1, 6)
        lower = self.array.uniform(-3.0, 0.0, d)
        limits = JointLimits(
            lower,
            lower + self.array.uniform(1.0, 5.0, d),
            self.array.uniform(0.5, 4.0, d),
            self.array.uniform(5.0, 40.0, d),
        )
        home = (limits.lower + limits.upper) / 2
        rate = rng.choice((100, 500)) if kind == "forward_command" else rng.choice((50, 100, 250))
        ages = rng.uniform(0.3, 1.0), rng.uniform(0.1, 0.5)
        return Robot(kind, tuple(f"j{i}" for i in range(d)), limits, home, 1.0 / rate, *ages)

    def _parameters(self) -> Parameters:
        rng = self.rng
        return Parameters(
            rng.choice(MODES),
            rng.choice((0.0, 0.05, 0.2, 1.0)),
            rng.choice((0.0, 0.01, 0.03, 0.1)),
            rng.choice((None, None, 1, 8)),
        )

    def _start(self, holds: dict[str, None]) -> TrajectoryLogic:
        given = self.robot, self.parameters, self.now_ns, lambda: self.t_ns, self._sent, holds
        return TrajectoryLogic(*given, self._reference, self._held_up, self._says)

    def _reference(self) -> np.ndarray | None:
        """What a joint_trajectory_controller tells of itself; no other kind does."""
        if self.robot.kind not in ("joint_trajectory", "servo_twist") or self.active("reactivate"):
            return None
        return self.controller.state(self.t_ns).position

    def _held(self, joints: tuple[str, ...]) -> tuple[np.ndarray | None, int]:
        """What a joint_trajectory_controller tells of a hold by its own will, every so often, a little later;
        not before it was activated."""
        if self.robot.kind not in ("joint_trajectory", "servo_twist"):
            return None, 0
        told_ns = (self.t_ns - self.told_later_ns) // self.told_every_ns * self.told_every_ns
        if told_ns <= self.until.get("reactivate", -1):
            return None, 0
        return self._controller(joints).held(told_ns), told_ns + self.offset_ns

    def _says(self, joints: tuple[str, ...]) -> tuple[np.ndarray | None, int]:
        """`_held`, as it reaches the node."""
        return self._held(joints)

    def _controller(self, joints: tuple[str, ...]) -> TrajectoryController:
        """That of some joints."""
        return self.controller

    @property
    def _width(self) -> int:
        return len(self.robot.joints) + 6 * (self.robot.kind == "servo_twist")

    @property
    def _rates(self) -> int:
        """Width of a command of velocities."""
        return 6 if self.robot.kind == "servo_twist" else len(self.robot.joints)

    def _at(self, t_ns: int, happen: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (t_ns, self._order, happen))

    def _every(self, period_ns: int, happen: Callable[[], None]) -> None:
        def again() -> None:
            late = round(abs(self.rng.gauss(0.0, self.jitter)) * period_ns * 0.3) if self.jitter else 0
            self._at(self.t_ns + max(period_ns + late - debt[0], 1), again)
            debt[0] = late
            happen()

        debt = [0]
        self._at(self.rng.randrange(period_ns), again)

    def _input(self, name: str, give: Callable[[], object]) -> None:
        """An event of the node's; while it stalls, the newest of each name waits."""
        self.events += 1
        if self.active("stall"):
            self._waiting[name] = give
        else:
            self._called(give)

    def _called(self, give: Callable[[], object]) -> None:
        with suppress(Ended):
            give()

    # the robot

    def _command(self) -> np.ndarray:
        kind = self.robot.kind
        if kind in ("joint_trajectory", "servo_twist"):
            return self.controller.state(self.t_ns).position
        return self.ticks[-1][1] if kind == "forward_command" and self.ticks else self.where

    def _joints(self) -> None:
        dt_s = (self.t_ns - self._felt_ns) * 1e-9
        self._felt_ns = self.t_ns
        if self.robot.kind == "servo_joint":
            if self.ticks and not self.active("drive off"):
                velocity = self.ticks[-1][1] if self.t_ns - self.ticks[-1][0] < 100 * MS else 0.0
                self.where = self.where + velocity * dt_s
        elif not self.active("drive off"):
            away = self._command() + self.sag - self.where
            most = 1.5 * self.robot.limits.velocity * dt_s
            self.where = self.where + np.clip(away * min(1.0, dt_s / 0.03), -most, most)
        elif self.t_ns < self.others_until_ns and np.abs(self._command() - self.where).max() > 0.1:
            self.controller.hold(self.where.copy(), self.t_ns)  # others judge the motion that they command
            self.others_until_ns = self.t_ns
        self.where = np.clip(self.where, self.robot.limits.lower, self.robot.limits.upper)
        if self.active("dropout"):
            return
        if not self.active("frozen") or self.happened["joints"] == 0:
            self.reported = self.where.copy()
        position = self.reported + (self.glitch if self.active("glitch") else 0.0)
        if self.active("joints not finite"):
            position[self.rng.randrange(len(position))] = self.rng.choice((np.nan, np.inf))
        stamp_ns = self.now_ns() + (self.stamp_off_ns if self.active("joint stamps") else 0)
        away = np.abs(position - self._command())
        near = bool((away < 0.7 * usual(self.robot.limits.velocity)).all())
        follows = near and not (self.activated or self.active("joint stamps"))
        follows = follows and self.robot.kind != "servo_joint"  # which tells of no position
        self.happened["joints"] += 1
        self._input("joints", lambda: self.node_joints(position, stamp_ns, follows))

    def node_joints(self, position: np.ndarray, stamp_ns: int, follows: bool) -> None:
        """Measured joints; follows: they are where the controllers are commanded to be."""
        before, node = set(self.node.holds), self.node
        node.joints(position, stamp_ns)
        if follows and any(NOT_FOLLOWING in reason for reason in set(node.holds) - before):
            self._break("held because joints do not follow, and they do")

    def _watch(self) -> None:
        self._input("watch", self.node_watch)

    def node_watch(self) -> None:
        """The watchdog's timer, and what the holds mean from then on."""
        silent = self.node.silent
        self.node.watch()
        if self.node.silent and not silent and self.ticks:  # the last command is all that there is
            last = self.ticks[-1][1] if self.robot.kind == "forward_command" else np.zeros(self._rates)
            self.ticks.append((self.t_ns + round(self.robot.period_s * S), last))
        held = OPERATOR in self.node.holds and RELEASED not in self.node.holds
        if held and self.holding is None:
            longest = (self.robot.limits.velocity / self.robot.limits.acceleration).max()
            # A join that has begun ends where it goes to: a stop on an unknown way could be anywhere.
            from_ns = max(self.t_ns + round(longest * S), self.node.joined_ns - self.offset_ns)
            from_ns += max(self.arrivals_ns - self.t_ns, 0)
            # A stream that was behind its path still catches up with it while it stops.
            slack_ns = HOLD_SLACK_NS * (1 if self.robot.kind == "joint_trajectory" else 2)
            self.holding = (from_ns + slack_ns, 0)

    def _tick(self) -> None:
        self._input("tick", self.node_tick)

    def node_tick(self) -> None:
        """The stream's timer."""
        command = self.node.tick()
        if command is not None:
            if self.node.silent:
                self._break("sent something while released")
            if self.restarted and self.robot.kind == "forward_command":
                # It knows the joints only, which drives that were off may have left elsewhere: from there on
                # it is judged anew.
                self.anew.append(len(self.ticks))
                self.ticks.append((self.t_ns - round(self.robot.period_s * S), self.where.copy()))
            self.restarted = False
            self.ticks.append((self.t_ns, command.copy()))

    # chunks

    def _chunks(self) -> None:
        if self.active("no chunks"):
            return
        chunk = self._made()
        self.kept = [*self.kept[-5:], chunk]
        if self.active("reordered") and len(self.kept) > 1:
            chunk = self.kept[self.rng.randrange(len(self.kept))]
        self._give(chunk)

    def _made(self) -> Chunk:
        rng, limits = self.rng, self.robot.limits
        horizon, step_s = self.horizon, self.step_s
        if self.active("other shape"):
            horizon, step_s = self.other
        age_s = self.age_s * rng.uniform(0.8, 1.3) + (
            rng.uniform(0.0, 1.0) if self.active("slow model") else 0.0
        )
        stamp_ns = self.now_ns() - round(age_s * S)
        t = ((stamp_ns - EPOCH) * 1e-9 + np.arange(1, horizon + 1) * step_s)[:, None]
        half = np.ones(self._width)
        middle = np.zeros(self._width)
        d = len(self.robot.joints)
        half[-d:], middle[-d:] = (limits.upper - limits.lower) / 2, (limits.upper + limits.lower) / 2
        actions = middle + self.amount * half * np.sin(t * self.speed + self.phase)
        actions += self.noise * self.array.normal(size=self._width)
        if self.active("jumps"):
            actions += half * self.array.uniform(-1.0, 1.0, self._width)
        if self.active("wild"):
            actions = self._wild(actions)
        self.number += 1
        return Chunk(
            actions.astype(np.float32),
            stamp_ns,
            step_s,
            self.number,
            self.number,
            np.zeros(horizon, np.float32),
        )

    def _wild(self, actions: np.ndarray) -> np.ndarray:
        rng = self.rng
        how = rng.choice(("nan", "inf", "far", "huge", "zigzag", "one"))
        row, column = rng.randrange(len(actions)), rng.randrange(actions.shape[1])
        if how in ("nan", "inf"):
            actions[row, column] = np.nan if how == "nan" else np.inf
        elif how == "far":
            actions *= rng.choice((3.0, 10.0))
        elif how == "huge":
            actions[row:, column] = rng.choice((1e5, -1e12, 3e38))
        elif how == "zigzag":
            actions[::2] += rng.uniform(0.1, 3.0)
        else:
            actions[row] += rng.uniform(-2.0, 2.0)
        return actions

    def _give(self, chunk: Chunk) -> None:
        def give() -> None:
            if np.isfinite(chunk.actions).all():
                self.newest_chunk_ns = max(self.newest_chunk_ns, min(chunk.stamp_ns, self.now_ns() + S // 10))
            self.node.chunk(chunk)

        self._input("chunk", give)

    # what was sent

    def _sent(self, trajectory: Trajectory, on_arrival: bool) -> None:
        sent_ns, offset_ns, off = self.t_ns, self.offset_ns, self.active("reactivate")
        held, held_ns = self._held(trajectory.joints)
        come_ns = self.sent_ns.get(trajectory.joints, 0) + round(self.parameters.lead_s * S)
        known = held is not None and held_ns - offset_ns >= come_ns and not on_arrival
        known &= not self.active("lying controllers")
        self.sent_ns[trajectory.joints] = sent_ns
        self.began = True
        if self.node.silent:
            self._break("sent something while released")
        self._check_length(trajectory, on_arrival)
        most = min(self.delay_of_lead, 1.0 if self.late else 2.0) * self.parameters.lead_s * S
        delay_ns = round(self.rng.uniform(0.0, most)) if self.parameters.lead_s else 0
        self.arrivals_ns = max(self.arrivals_ns + 1, sent_ns + delay_ns)
        if on_arrival and self.holding is not None:  # a stop begins anew when the clock is set
            until_ns = self.arrivals_ns + trajectory.end_ns - self.now_ns()
            self.holding = max(self.holding[0], until_ns), 0

        def arrive() -> None:
            # A time from arrival is what it was from sending; any other is ROS time.
            shift_ns = self.t_ns - (sent_ns + offset_ns) if on_arrival else -self.offset_ns
            times = trajectory.times_ns + shift_ns
            positions, velocities = trajectory.positions, trajectory.velocities
            if times[-1] < times[0] + KEEP_NS:
                times = np.append(times, times[0] + KEEP_NS)
                positions = np.concatenate([positions, positions[-1:]])
                if velocities is not None:
                    velocities = np.concatenate([velocities, velocities[-1:]])
            moved = Trajectory(trajectory.joints, times, positions, velocities)
            where = self._where(trajectory.joints)
            measured = MotionState(self.t_ns, where, np.zeros_like(where))
            if not self._deactivated(moved, off and on_arrival, known):
                self._controller(moved.joints).accept(moved, self.t_ns, measured)
                if on_arrival:
                    self.controller.eased.append((self.t_ns, moved.end_ns))
                    if not self.controller.from_desired:
                        self.controller.spare(self.t_ns, moved.end_ns)

        self._at(self.arrivals_ns, arrive)

    def _where(self, joints: tuple[str, ...]) -> np.ndarray:
        return self.where[[self.robot.joints.index(name) for name in joints]]

    def _held_up(self) -> None:
        """The process is not scheduled between a decision and its message: the call of the node's that sends
        goes on later, and meanwhile everything else happens, and inputs wait. Nothing else is decided before
        that message has left: one thread decides and sends."""
        self.late = False
        if not self.active("held up") or self.active("stall"):
            return
        self._lasts("stall", 0.0, 0.4)
        until_ns, restarts = self.until["stall"], self.happened["restart"]
        self._go_on_later()
        while self._queue and self._queue[0][0] <= min(until_ns, self.end_ns):
            self._next()
            if self.happened["restart"] != restarts:
                raise Ended
        if until_ns > self.end_ns:
            raise Ended
        self.t_ns, self.late = until_ns, True

    def _check_length(self, trajectory: Trajectory, on_arrival: bool) -> None:
        """No more motion than the age of chunks allows, and a brake."""
        if trajectory.velocities is None:
            return
        moving = np.flatnonzero(trajectory.velocities.any(axis=1))
        if not len(moving):
            return
        last = min(int(moving[-1]) + 1, len(trajectory) - 1)
        limits = self.robot.limits
        brake_ns = round((limits.velocity / limits.acceleration).max() * S)
        age_ns = round(self.robot.chunk_age_s * S)
        allowed = max(self.now_ns() + round(4 * self.parameters.lead_s * S), self.newest_chunk_ns + age_ns)
        if HOMING in self.node.holds:
            most_ns = self.node.most_ns
            allowed = max(allowed, self.now_ns() + most_ns, trajectory.start_ns + most_ns // 2)
        over = int(trajectory.times_ns[last]) - allowed - brake_ns
        if over > 10 * MS:
            self._break("motion beyond the age limit of chunks", 1.0 + over * 1e-9)

    def _break(self, what: str, by: float = 2.0) -> None:
        if not any(broken.what == what for broken in self.broken):
            self.broken.append(Broken(what, self.t_ns * 1e-9, by))

    # what goes wrong

    def _fault(self) -> None:
        self._at(self.t_ns + round(self.rng.expovariate(self.pace) * S) + MS, self._fault)
        name = self.rng.choice(self.faults)
        self.happened[name] += 1
        self.log.append(f"{self.t_ns * 1e-9:.3f} {name}")
        self.table[name](self, name)

    def _lasts(self, name: str, shortest_s: float, longest_s: float) -> None:
        self.until[name] = self.t_ns + round(self.rng.uniform(shortest_s, longest_s) * S)

    def _judge(self) -> None:
        self._unhold()
        robot, longest_s = self.robot, 2.0 * self.robot.period_s
        if robot.kind in ("joint_trajectory",):
            _, p = self.controller.path(self.end_ns)
            self.moved = float(np.mean(np.abs(np.diff(p, axis=0)).max(axis=1) > 1e-6))
        elif len(self.ticks) > 2:
            p = np.array([p for _, p in self.ticks])
            if robot.kind == "forward_command":
                p = np.diff(p, axis=0)
            self.moved = float(np.mean(np.abs(p).max(axis=1) > 1e-6))
        if robot.kind in ("joint_trajectory", "servo_twist"):
            times, positions = self.controller.path(self.end_ns)
            self.broken += judge_path(times, positions, robot.limits, *self.controller.exceptions)
            for begin, end in self.still:
                part = positions[np.searchsorted(times, begin) : np.searchsorted(times, end)]
                if len(part) and np.ptp(part, axis=0).max() > 1e-9:
                    self.broken.append(
                        Broken("moved while held", begin * 1e-9, float(np.ptp(part, axis=0).max()))
                    )
            self.broken += [Broken(f"refused: {why}", 0.0, 2.0) for why in self.controller.rejected[:1]]
        if robot.kind == "forward_command":
            for begin, end in itertools.pairwise([*self.anew, len(self.ticks)]):
                self.broken += judge_positions(self.ticks[begin:end], robot.limits, longest_s)
        elif robot.kind == "servo_joint":
            limits = robot.limits
            self.broken += judge_velocities(self.ticks, limits.velocity, limits.acceleration, longest_s)
        elif robot.kind == "servo_twist":
            for half, most in ((slice(0, 3), robot.linear), (slice(3, 6), robot.angular)):
                sizes = [(t, v[half]) for t, v in self.ticks]
                self.broken += judge_velocities(sizes, np.full(3, most), np.full(3, most / 0.15), longest_s)
        if robot.kind in ("forward_command", "servo_joint"):
            for begin, end in self.still:
                held = [p for t, p in self.ticks if begin <= t < end]
                moved = np.ptp(held, axis=0).max() if len(held) and robot.kind == "forward_command" else 0.0
                moved = np.abs(held).max() if len(held) and robot.kind == "servo_joint" else moved
                if moved > 1e-9:
                    self.broken.append(Broken("moved while held", begin * 1e-9, float(moved)))

    def _unhold(self) -> None:
        if self.holding is not None and self.holding[0] < self.t_ns:
            self.still.append((self.holding[0], self.t_ns))
        self.holding = None

    # single faults

    def glitches(self, name: str) -> None:
        """Joints are reported elsewhere for a moment."""
        # Joints that lie for longer as the first thing that is known of them are believed.
        self._lasts(name, 0.002, self.rng.choice((0.02, 0.2, 1.0)) if self.began else 0.15)
        self.glitch = np.zeros_like(self.where)
        joint = self.rng.randrange(len(self.glitch))
        self.glitch[joint] = self.rng.choice((-1, 1)) * self.rng.choice((0.05, 0.4, 1.0))

    def stamps(self, name: str) -> None:
        """Joints are stamped wrongly."""
        self._lasts(name, 0.02, 1.0)
        self.stamp_off_ns = round(self.rng.choice((-2.0, -0.5, -0.05, 0.05, 0.3, 50.0)) * S)

    def shape(self, name: str) -> None:
        """Chunks of another horizon and step."""
        self._lasts(name, 0.1, 2.0)
        self.other = self.rng.choice((1, 2, 10, 50, 100)), self.rng.choice((0.002, 0.02, 0.1, 0.5))

    def duplicate(self, name: str) -> None:
        """A chunk comes again, maybe with another number or an older version."""
        if self.kept:
            chunk = self.rng.choice(self.kept)
            number = self.rng.choice((chunk.request_id, chunk.request_id + 1, 0))
            self._give(replace(chunk, request_id=number, kv_version=self.rng.choice((0, chunk.kv_version))))

    def future(self, name: str) -> None:
        """A chunk of a time to come, or of long ago."""
        off_ns = round(self.rng.choice((0.05, 0.2, 5.0, -1.0, -100.0)) * S)
        self._give(replace(self._made(), stamp_ns=self.now_ns() + off_ns))

    def clock(self, name: str) -> None:
        """ROS time is set."""
        by_s = self.rng.choice((-0.002, -0.015, -0.1, -50.0, 0.01, 0.3, 1.5, 100.0))
        by_ns = round(by_s * S)
        self.offset_ns += by_ns
        if -20 * MS <= by_ns <= S:  # the controller lives by the same clock
            self.controller.shift(by_ns, self.t_ns)
        # What was sent and has not come means another time on arrival.
        self.controller.spare(self.t_ns, max(self.t_ns + abs(by_ns) * (abs(by_ns) < S), self.arrivals_ns))
        self.newest_chunk_ns = min(self.newest_chunk_ns, self.now_ns())
        self.kept.clear()

    def hold(self, name: str) -> None:
        """~/hold."""
        self._input("order", self.node.hold)
        self._resumed_later()

    def resume(self, name: str) -> None:
        """~/resume, which ends what a hold means."""

        def give() -> None:
            self._unhold()
            self.node.resume()

        self._input("order", give)

    def _resumed_later(self) -> None:
        if self.rng.random() < 0.8:
            self._at(self.t_ns + round(self.rng.uniform(0.0, 2.0) * S), lambda: self.resume("resume"))

    def release(self, name: str) -> None:
        """~/release, and somebody else moves the joints."""

        def others() -> None:
            idle = self.t_ns > self.others_until_ns
            if self.node.silent and idle and self.robot.kind in ("joint_trajectory", "servo_twist"):
                goal = self.robot.limits.lower + self.array.uniform(0.1, 0.9, len(self.where)) * (
                    self.robot.limits.upper - self.robot.limits.lower
                )
                here = np.clip(
                    self.controller.state(self.t_ns).position,
                    self.robot.limits.lower,
                    self.robot.limits.upper,
                )
                path = move(self.robot.joints, here, goal, self.robot.limits, 0.3, self.t_ns)
                self.controller.accept(path, self.t_ns, MotionState(self.t_ns, self.where))
                self.others_until_ns = path.end_ns
                self._unhold()

        self._input("order", self.node.release)
        self._at(self.t_ns + S, others)
        if self.rng.random() < 0.7:
            self._at(self.t_ns + round(self.rng.uniform(0.5, 6.0) * S), lambda: self.reclaim(name))

    def reclaim(self, name: str) -> None:
        """~/reclaim, when the others are done."""

        def give() -> None:  # which a node that stalls hears later: others may have begun meanwhile
            if self.t_ns > self.others_until_ns + S // 5:
                self.node.reclaim()

        self._input("order", give)

    def home(self, name: str) -> None:
        """~/home."""
        self._input("order", self.node.home)
        self._resumed_later()

    def restart(self, name: str) -> None:
        """The process ends and another begins, maybe with other parameters; holds survive."""
        if self.rng.random() < 0.5:
            self.parameters = self._parameters()
        holds = {reason: None for reason in self.node.holds if reason not in PASSING}
        if self.rng.random() < 0.8:
            holds[RESTARTED] = None
        self.node.silent, restarts = False, self.happened["restart"]

        def begin() -> None:
            if self.happened["restart"] != restarts:
                return  # this one was ended before it began: the next begins in its place
            self._unhold()
            self.began, self.restarted = False, True
            self.node = self._start(holds)
            self._resumed_later()

        self.began = False
        self.until["glitch"] = self.until["frozen"] = self.t_ns
        self._lasts("stall", 0.3, 3.0)
        self._waiting = {}
        self._at(self.until["stall"] + 1, begin)

    def stall(self, name: str) -> None:
        """The node is not scheduled for a while; then what waited comes at once."""
        if self.active("stall"):
            return
        self._lasts(name, 0.02, self.rng.choice((0.05, 0.3, 2.0)))
        if self.holding is not None and self.robot.kind != "joint_trajectory":
            # A stream whose process is not scheduled brakes the rest of the way after that.
            self.holding = max(self.holding[0], self.until[name] + HOLD_SLACK_NS), 0
        self._go_on_later()

    def _go_on_later(self) -> None:
        self._waiting = {}

        def go_on() -> None:
            if self.active("stall"):
                return  # the process has ended meanwhile
            waiting, self._waiting = list(self._waiting.values()), {}
            self.rng.shuffle(waiting)
            restarts = self.happened["restart"]
            for give in waiting:
                if self.happened["restart"] == restarts:  # else what waited died with it
                    self._called(give)

        self._at(self.until["stall"] + 1, go_on)

    def reactivate(self, name: str) -> None:
        """Drives go off and on: the controller is deactivated meanwhile, then holds where the joints are."""
        if self.robot.kind in ("joint_trajectory", "servo_twist"):
            self._lasts(name, 0.4, 2.0)
            self.until["drive off"] = self.until[name]
            self._unhold()
            self.controller.hold(self.where.copy(), self.t_ns)
            self.activated = set(self.robot.joints)

    def _deactivated(self, trajectory: Trajectory, stops: bool, known: bool) -> bool:
        """Whether the controller is still off. It is not activated by anybody while it is commanded to be
        further away than a following error may be; what is nearer is stepped to. stops: it is a stop on
        arrival that was sent while the controller was off, and could tell nothing. known: when this was sent
        it had told where it is, and all that was sent before had come or was lost: nothing steps."""
        joints = trajectory.joints
        if self.active("reactivate"):
            return True
        if self.activated & set(joints) and not known and (stops or trajectory.start_ns <= self.t_ns):
            away = np.abs(trajectory.sample(self.t_ns)[0] - self._where(joints))
            if (away > usual(self.robot.limits.velocity)[[self.robot.joints.index(n) for n in joints]]).any():
                self.until["reactivate"] = self.until["drive off"] = self.t_ns + S // 10
                return True
            self.controller.spare(self.t_ns)
        self.activated -= set(joints)
        return False


FAULTS: dict[str, Callable[[Any, str], None]] = {
    "glitch": Episode.glitches,
    "dropout": lambda e, n: e._lasts(n, 0.05, 1.5),
    "frozen": lambda e, n: e._lasts(n, 0.05, 1.5 if e.began else 0.15),
    "drive off": lambda e, n: e._lasts(n, 0.05, 2.0),
    "joint stamps": Episode.stamps,
    "joints not finite": lambda e, n: e._lasts(n, 0.02, 0.5),
    "no chunks": lambda e, n: e._lasts(n, 0.1, 2.0),
    "reordered": lambda e, n: e._lasts(n, 0.1, 2.0),
    "other shape": Episode.shape,
    "slow model": lambda e, n: e._lasts(n, 0.2, 2.0),
    "jumps": lambda e, n: e._lasts(n, 0.1, 2.0),
    "wild": lambda e, n: e._lasts(n, 0.1, 1.0),
    "duplicate": Episode.duplicate,
    "future": Episode.future,
    "clock": Episode.clock,
    "hold": Episode.hold,
    "resume": Episode.resume,
    "release": Episode.release,
    "home": Episode.home,
    "restart": Episode.restart,
    "stall": Episode.stall,
    "held up": lambda e, n: e._lasts(n, 0.1, 2.0),
    "reactivate": Episode.reactivate,
}


@dataclass(frozen=True)
class Result:
    """Of one episode. moved: share of the time in which the joints were commanded to move. log: what
    happened, as "time fault"."""

    seed: int
    kind: str
    mode: str
    events: int
    moved: float
    broken: tuple[str, ...]
    log: tuple[str, ...]

    def __str__(self) -> str:
        again = f"python test/control/adversary.py --seed {self.seed}"
        return f"{self.kind} {self.mode}: {'; '.join(self.broken)}; again: {again}"


def play(
    seed: int,
    faults: tuple[str, ...] | None = None,
    kind: str | None = None,
    chunk_hz: int | None = None,
    episode_of: type[Episode] = Episode,
) -> Result:
    """One episode; what it raises is broken too."""
    episode = episode_of(seed, faults, kind, chunk_hz)
    mode = episode.parameters.mode
    try:
        episode.run()
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        episode.broken.append(Broken(f"{trace}at", episode.t_ns * 1e-9, 2.0))
    broken = tuple(map(str, episode.broken))
    return Result(seed, episode.robot.kind, mode, episode.events, episode.moved, broken, tuple(episode.log))


def results(
    events: int,
    first: int = 0,
    faults: tuple[str, ...] | None = None,
    kind: str | None = None,
    processes: int = 1,
    chunk_hz: int | None = None,
    episode_of: type[Episode] = Episode,
) -> Iterator[Result]:
    """Episodes from a seed on, until so many events have happened."""
    one = partial(play, faults=faults, kind=kind, chunk_hz=chunk_hz, episode_of=episode_of)
    seeds = itertools.count(first)
    if processes == 1:
        played: Iterator[Result] = map(one, seeds)
        pool = None
    else:
        pool = multiprocessing.get_context("spawn").Pool(processes)
        # An endless source would be read to its end: what is more than enough is never played.
        played = pool.imap_unordered(one, itertools.islice(seeds, events), chunksize=4)
    for result in played:
        events -= result.events
        yield result
        if events <= 0:
            break
    if pool is not None:
        pool.terminate()


def main(episode_of: type[Episode] = Episode, about: str | None = __doc__) -> int:
    """Play episodes until so many events have happened; status 1 when something was broken."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="in all (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first episode")
    parser.add_argument("--seed", type=int, help="only this episode, with what happened in it")
    parser.add_argument("--faults", help=f"comma separated, of: {', '.join(FAULTS)}; all when not given")
    parser.add_argument("--kind", choices=KINDS, help="of the controller; random when not given")
    parser.add_argument("--chunk-hz", type=int, help="chunks a second; random when not given")
    parser.add_argument("--processes", type=int, default=1)
    wanted = parser.parse_args()
    faults = None if wanted.faults is None else tuple(filter(None, wanted.faults.split(",")))
    if wanted.seed is not None:
        result = play(wanted.seed, faults, wanted.kind, wanted.chunk_hz, episode_of)
        print("\n".join((*result.log, str(result))))
        return bool(result.broken)
    events, episodes, failed, began = 0, 0, 0, time.monotonic()
    for result in results(
        wanted.events, wanted.first, faults, wanted.kind, wanted.processes, wanted.chunk_hz, episode_of
    ):
        events, episodes = events + result.events, episodes + 1
        if result.broken:
            failed += 1
            print(result, flush=True)
        if episodes % 1000 == 0:
            print(f"{events} events, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{events} events in {episodes} episodes: {failed} of them broke something")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
