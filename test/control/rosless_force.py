"""What the trajectory node does with a force sensor, without ROS: as nodes/trajectory/force.py."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from rosless import TrajectoryLogic
from rosless_sending import HOMING, OPERATOR

from vla_accel_ros.control.following.watchdog import ClockWatch
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force, ForceGuard, Reaction
from vla_accel_ros.control.force.sensor import ForceSensor, Quantity
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.types import Chunk

FORCE_HZ = 250
YIELDS, STOPS, MOST = 10.0, 30.0, 200.0
RETREAT = Retreat(rad=0.2, s=0.6)


@dataclass
class Touching(TrajectoryLogic):
    """With a force sensor, as nodes/trajectory/force.py has it. Attribute `reacting`: what is sent answers a
    contact."""

    def __post_init__(self) -> None:
        quantity = Quantity("force", "N", ("x", "y", "z"), YIELDS, STOPS, most=MOST)
        sensor = ForceSensor("wrench", (quantity,), rate_hz=FORCE_HZ, max_age_s=0.03, slot="wrist")
        streamed = self.robot.kind in ("forward_command", "servo_joint")
        told = np.full(len(self.robot.joints), streamed)
        if self.robot.kind == "servo_twist":
            self.twist = self.make_twist(RETREAT.hand)
        given = Force((sensor,), RETREAT), self.robot.joints, self.robot.limits, told
        self.guard = ForceGuard(*given, self.twist)
        self.taking = TakingOver(self.guard, Held(self), nullcontext(), self.react)
        self._felt, self.passing, self.reacting = ClockWatch(self.clock_ns, self.steady_ns), set[str](), False
        super().__post_init__()

    def feel(self, sample: tuple[float, ...] | None, stamp_ns: int) -> None:
        """A sample has come; None: none has."""
        now_ns = self.clock_ns()
        if self._felt.jump_ns():
            self.guard.armed = False
        if sample is not None:
            self.guard.take(0, sample, stamp_ns, now_ns)
        reaction = self.guard.step(now_ns, self._kept_ns)
        if reaction is not None:
            self.react(reaction)

    def react(self, reaction: Reaction) -> None:
        """What the guard decided."""
        now_ns, self.reacting = self.clock_ns(), True
        for one in self.controllers:
            self._send_to(one, reaction.sent if self.stream is None else reaction.streamed, now_ns)
        self.reacting = False

    def chunk(self, chunk: Chunk) -> None:
        self._now()
        self.taking.adopt(self.clock_ns())
        super().chunk(chunk)

    def watch(self) -> None:
        self._now()
        self.taking.adopt(self.clock_ns())
        super().watch()
        if self._clock.was_set():
            return
        sentence = self.taking.watch(self.clock_ns())
        if sentence and HOMING in self.holds and sentence not in self.holds:
            self._hold(sentence)
            self._cancel()

    def resume(self) -> None:
        kept = self.passing & set(self.holds)
        super().resume()
        for reason in kept:
            self._hold(reason)
        self.taking.forgive()

    def hold(self, reason: str = OPERATOR, passing: bool = False) -> None:  # ~/hold, and that of Holds
        if reason == OPERATOR:
            super().hold()
            return
        self._hold(reason)
        if passing:
            self.passing.add(reason)

    def fault(self, sentence: str) -> None:
        """As Holds has it."""
        self._hold(sentence)

    def take_back(self, reason: str) -> None:
        self._take_back(reason)
        self.passing.discard(reason)

    def _send(self, decided: Trajectory | None) -> None:
        if decided is not None and self.guard.follow(decided):
            super()._send(decided)

    def _clock_jumped(self, now_ns: int) -> None:
        self.taking.adopt(now_ns - self._jumped_ns)
        super()._clock_jumped(now_ns)

    def _begin(self) -> None:
        super()._begin()
        self.taking.begin(self.follower)


class Held:
    """What holds a robot, as TakingOver asks for it."""

    def __init__(self, logic: Touching) -> None:
        self._logic = logic

    @property
    def holds(self) -> dict[str, None]:
        return self._logic.holds

    @property
    def lent(self) -> bool:
        return self._logic.lent

    def hold(self, reason: str, passing: bool = False) -> None:
        self._logic.hold(reason, passing)

    def resume(self, reason: str) -> None:
        if reason in self.holds:
            self._logic.take_back(reason)

    def fault(self, sentence: str) -> None:
        self._logic.fault(sentence)
