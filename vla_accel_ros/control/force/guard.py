"""What the arm does about a contact: it goes on, goes back, or stops; by samples alone, and at once.

Beyond `yields` it brakes, at once, and a step later the way back along the path it came (executed.py) is
added, which it goes until the contact is over; beyond `stops`, or when a sensor cannot be believed, it brakes
and stays. It never goes on blind. A reaction is a trajectory like any other: within limits, and on what is
commanded already. Until the node has taken it over (`reactions`), nothing is sent that was decided without
knowing of it. An arm that stands in a contact beyond `stops`, because somebody resumed, goes back, too: a
stop would change nothing. So does one that comes into such a contact while it brakes to go back; it needs a
person then.

Two threads use it, under one lock of theirs: one for samples and `step`, the node's for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from vla_accel_ros.control.force.executed import ExecutedPath, Retreat, merged
from vla_accel_ros.control.force.sensor import ForceSensor, Level, SensorWatch
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory


@dataclass(frozen=True)
class Force:
    """A contract's section `force`. stay: names of joints that do not go back."""

    sensors: tuple[ForceSensor, ...]
    retreat: Retreat = field(default_factory=Retreat)
    stay: tuple[str, ...] = ()


_TURNING_NS = 50_000_000
"""For so long after it began to go back a contact may still grow."""


class Phase(Enum):
    """What the guard is about."""

    WATCHING = "watching"
    RETREATING = "retreating"
    STOPPED = "stopped"


class Why(Enum):
    """Of a reaction."""

    CONTACT = "contact"
    RETREAT = "retreat"
    COLLISION = "collision"
    BLIND = "blind"
    OVER = "over"


@dataclass(frozen=True)
class Reaction:
    """What is commanded because of a sensor. sentence: why. streamed: for controllers that are told where to
    be at a rate, from now on; sent: for those that a message takes a while to; path: both, each its joints.
    commit_ns: up to then the path is the one before, for all."""

    number: int
    why: Why
    sentence: str
    streamed: Trajectory
    sent: Trajectory
    path: Trajectory
    commit_ns: int


class ForceGuard:
    """The reactions of one arm. streamed: bool [D], joints whose controllers are told at a rate.

    Attributes: `watches`, of the sensors; `phase`; `armed`, whether the arm is moved by paths that were told
    by `follow` at present; `yields`, how often it went back; `collided`, the contact beyond `stops` that it
    came into before it went back, empty for none.
    """

    def __init__(
        self, force: Force, joints: tuple[str, ...], limits: JointLimits, streamed: np.ndarray
    ) -> None:
        self.force = force
        self.watches = [SensorWatch(sensor) for sensor in force.sensors]
        back = np.array([name not in force.stay for name in joints], dtype=bool)
        self._executed = ExecutedPath(joints, limits, back, force.retreat)
        self._streamed = np.asarray(streamed, dtype=bool)
        self.phase, self.armed, self.yields = Phase.WATCHING, False, 0
        self._number, self._pending = 0, list[Reaction]()
        self._back_ns = 0  # from when on it goes back
        self._way_back_due = False
        self._worst = Level.FREE  # since it began to go back
        self.collided = ""

    def forget(self) -> None:
        """Motion begins anew: nothing is known of the path, nor of samples; the bias stays."""
        self._executed.forget()
        for watch in self.watches:
            watch.forget()
        self.phase, self.armed = Phase.WATCHING, False
        self._way_back_due, self.collided = False, ""
        self._pending.clear()

    def take(self, sensor: int, sample: Sequence[float], stamp_ns: int, now_ns: int) -> None:
        """A sample of a sensor, by its place in the contract."""
        watch = self.watches[sensor]
        if watch.take(sample, stamp_ns, now_ns) and not watch.is_tared and self._executed.at_rest(now_ns):
            watch.tare(sample, stamp_ns)

    def follow(self, path: Trajectory) -> bool:
        """A path of all joints is about to be sent; False when a reaction has come before, and it must not
        be."""
        if self._pending:
            return False
        self._executed.follow(path)
        return True

    def step(self, now_ns: int, lead_ns: int) -> Reaction | None:
        """The reaction to command now, if any. lead_ns: how long what was sent must go on as it was for
        controllers that are not streamed."""
        if not self.armed or not self._executed.begun(now_ns):
            return None
        if self.phase is Phase.WATCHING:
            blind = self.problem(now_ns)
            if blind:
                return self._react(Why.BLIND, blind, now_ns, lead_ns)
            level, sentence = self.contact
            if level is Level.STOP and not self._executed.stands(now_ns):
                return self._react(Why.COLLISION, sentence, now_ns, lead_ns)
            self._worst = level
            return None if level is Level.FREE else self._react(Why.CONTACT, sentence, now_ns, lead_ns)
        if self.phase is Phase.RETREATING:
            return self._while_retreating(now_ns, lead_ns)
        return None

    def _while_retreating(self, now_ns: int, lead_ns: int) -> Reaction | None:
        blind = self.problem(now_ns)
        if not blind and self._way_back_due:
            return self._react(Why.RETREAT, "", now_ns, lead_ns)
        if self._executed.at_rest(now_ns):
            self.phase = Phase.STOPPED
            return None
        if blind:
            return self._react(Why.BLIND, blind, now_ns, lead_ns)
        level, sentence = self.contact
        if level > self._worst and now_ns < self._back_ns + _TURNING_NS:
            self._worst, self.collided = level, sentence  # to go back is the best it can do
        elif level > self._worst:
            return self._react(Why.COLLISION, sentence, now_ns, lead_ns)
        if level is Level.FREE and now_ns >= self._back_ns:
            return self._react(Why.OVER, "", now_ns, lead_ns)
        return None

    def end_retreat(self, now_ns: int, lead_ns: int) -> Reaction | None:
        """Come to rest, for a reason of the node's; None when it does not go back."""
        if self.phase is not Phase.RETREATING or self._executed.at_rest(now_ns):
            return None
        return self._react(Why.OVER, "", now_ns, lead_ns)

    def _react(self, why: Why, sentence: str, now_ns: int, lead_ns: int) -> Reaction:
        all_streamed, none = bool(self._streamed.all()), not self._streamed.any()
        moves = not self._executed.at_rest(now_ns)
        begins = []

        def path(lead_ns: int) -> Trajectory:
            if why is not Why.RETREAT:
                return self._executed.stop(now_ns, now_ns + lead_ns)
            trajectory, back_ns = self._executed.retreat(now_ns, now_ns + lead_ns)
            begins.append(back_ns)
            return trajectory

        sent = path(0 if all_streamed or not moves else lead_ns)
        streamed = sent if all_streamed or none else path(0)
        whole = sent if streamed is sent else merged(sent, streamed, self._streamed)
        self.collided = "" if why is Why.CONTACT else self.collided
        self.phase = Phase.RETREATING if why in (Why.CONTACT, Why.RETREAT) else Phase.STOPPED
        self._way_back_due = why is Why.CONTACT
        self._back_ns = max(begins, default=now_ns)
        self.yields += why is Why.CONTACT
        self._executed.follow(whole, reacts=why in (Why.RETREAT, Why.OVER))
        self._number += 1
        commit_ns = now_ns if all_streamed else now_ns + lead_ns
        reaction = Reaction(self._number, why, sentence, streamed, sent, whole, commit_ns)
        self._pending.append(reaction)
        return reaction

    def reactions(self) -> list[Reaction]:
        """Those that the node has not taken over yet; from now on it has."""
        pending, self._pending = self._pending, []
        return pending

    def go_on(self) -> None:
        """Chunks move the arm again, and the node knows of all reactions."""
        if not self._pending:
            self.phase = Phase.WATCHING

    def forgive(self) -> None:
        """A person has looked at what was wrong."""
        for watch in self.watches:
            watch.forgive()

    def begin_tare(self) -> None:
        """Take the bias of all sensors that have one, while the arm stands."""
        for watch in self.watches:
            if watch.sensor.tared:
                watch.begin_tare()

    @property
    def contact(self) -> tuple[Level, str]:
        """The greatest contact, and what it is."""
        worst = max(self.watches, key=lambda watch: watch.level)
        return worst.level, worst.sentence

    @property
    def wrong(self) -> str:
        """Which sensor a person has to look at, and why; empty for none."""
        return next((watch.wrong for watch in self.watches if watch.wrong), "")

    def problem(self, now_ns: int) -> str:
        """Why the arm would be blind now, a sentence; empty if it is not."""
        for watch in self.watches:
            sentence = watch.wrong or watch.late(now_ns) or watch.untared
            if sentence:
                return sentence
        return ""
