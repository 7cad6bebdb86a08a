"""How the arm reacts to a contact: it continues, retreats or stops, at once and by samples alone.

Beyond `yields` it brakes at once. A step later it adds the way back along its path (executed.py), and follows
it until the contact is over. Beyond `stops`, or if a sensor cannot be believed, it brakes and stays: it never
moves on without a sensor. A reaction is an ordinary trajectory: within limits, and a continuation of what is
commanded already. Until the node has taken it over (`reactions`), nothing is sent that was decided without
knowing of it. An arm that stands still in a contact beyond `stops`, because someone resumed, retreats too, as
a stop would change nothing. So does an arm that meets such a contact while it brakes for a retreat; it then
needs a person.

Two threads use it under one lock that they own: one for samples and `step`, the node's for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.force.executed import ExecutedPath, Retreat, merged
from vla_accel_ros.control.force.sensor import ForceSensor, Level, SensorWatch
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory


@dataclass(frozen=True)
class Force:
    """A contract's section `force`. stay: names of joints that do not retreat."""

    sensors: tuple[ForceSensor, ...]
    retreat: Retreat = field(default_factory=Retreat)
    stay: tuple[str, ...] = ()


_TURNING_NS = 50_000_000
"""A contact may still grow for this long after the retreat began."""


class Phase(Enum):
    """What the guard does at present."""

    WATCHING = "watching"
    RETREATING = "retreating"
    STOPPED = "stopped"


class Why(Enum):
    """The reason of a reaction."""

    CONTACT = "contact"
    RETREAT = "retreat"
    COLLISION = "collision"
    BLIND = "blind"
    OVER = "over"


@dataclass(frozen=True)
class Reaction:
    """What is commanded because of a sensor. sentence: the reason. streamed: for controllers that are
    commanded at a fixed rate, from now on; sent: for those that are sent trajectories; path: both combined,
    each for its joints. commit_ns: the path equals the previous one until then, for all joints."""

    number: int
    why: Why
    sentence: str
    streamed: Trajectory
    sent: Trajectory
    path: Trajectory
    commit_ns: int


class ForceGuard:
    """The reactions of one arm. streamed: bool [D], joints whose controllers are commanded at a fixed rate.
    twists: of a hand and a base, which react as the joints do.

    Attributes: `watches`, one for each sensor; `phase`; `armed`, whether the paths passed to `follow` move
    the arm at present; `yields`, number of retreats; `collided`, the contact beyond `stops` that the arm met
    before it retreated, empty for none.
    """

    def __init__(
        self,
        force: Force,
        joints: tuple[str, ...],
        limits: JointLimits,
        streamed: np.ndarray,
        twists: Sequence[TwistBuffer] = (),
    ) -> None:
        self.force, self._twists = force, twists
        self.watches = [SensorWatch(sensor) for sensor in force.sensors]
        back = np.array([name not in force.stay for name in joints], dtype=bool)
        self._executed = ExecutedPath(joints, limits, back, force.retreat)
        self._streamed = np.asarray(streamed, dtype=bool)
        self.phase, self.armed, self.yields = Phase.WATCHING, False, 0
        self._number, self._pending = 0, list[Reaction]()
        self._back_ns = 0  # start of the way back
        self._way_back_due = False
        self._worst = Level.FREE  # since the retreat began
        self.collided = ""

    def forget(self) -> None:
        """Motion starts anew: forget the path and the samples; the bias stays."""
        self._executed.forget()
        for watch in self.watches:
            watch.forget()
        self.phase, self.armed = Phase.WATCHING, False
        self._way_back_due, self.collided = False, ""
        self._pending.clear()
        for twist in self._twists:
            twist.go_on()

    def take(self, sensor: int, sample: Sequence[float], stamp_ns: int, now_ns: int) -> None:
        """Take a sample of a sensor, given by its index in the contract."""
        watch = self.watches[sensor]
        if watch.take(sample, stamp_ns, now_ns) and not watch.is_tared and self._executed.at_rest(now_ns):
            watch.tare(sample, stamp_ns)

    def follow(self, path: Trajectory) -> bool:
        """A path of all joints is about to be sent. Returns False if a reaction came first: the path must
        then not be sent."""
        if self._pending:
            return False
        self._executed.follow(path)
        return True

    def step(self, now_ns: int, lead_ns: int) -> Reaction | None:
        """Returns the reaction to command now, if any. lead_ns: how long the sent motion must go on unchanged
        for controllers that are not streamed."""
        if not self.armed or not self._executed.begun(now_ns):
            return None
        if self.phase is Phase.WATCHING:
            blind = self.problem(now_ns)
            if blind:
                return self._react(Why.BLIND, blind, now_ns, lead_ns)
            level, contact = self.contact
            if level is Level.STOP and not self._stands(now_ns):
                return self._react(Why.COLLISION, contact, now_ns, lead_ns)
            self._worst = level
            return None if level is Level.FREE else self._react(Why.CONTACT, contact, now_ns, lead_ns)
        if self.phase is Phase.RETREATING:
            return self._while_retreating(now_ns, lead_ns)
        return None

    def _while_retreating(self, now_ns: int, lead_ns: int) -> Reaction | None:
        blind = self.problem(now_ns)
        if not blind and self._way_back_due:
            return self._react(Why.RETREAT, "", now_ns, lead_ns)
        if self._at_rest(now_ns):
            self.phase = Phase.STOPPED
            return None
        if blind:
            return self._react(Why.BLIND, blind, now_ns, lead_ns)
        level, contact = self.contact
        if level > self._worst and now_ns < self._back_ns + _TURNING_NS:
            self._worst, self.collided = level, contact  # the retreat is already the best reaction
        elif level > self._worst:
            return self._react(Why.COLLISION, contact, now_ns, lead_ns)
        if level is Level.FREE and now_ns >= self._back_ns:
            return self._react(Why.OVER, "", now_ns, lead_ns)
        return None

    def end_retreat(self, now_ns: int, lead_ns: int) -> Reaction | None:
        """Come to rest for a reason of the node's; None if the arm does not retreat."""
        if self.phase is not Phase.RETREATING or self._at_rest(now_ns):
            return None
        return self._react(Why.OVER, "", now_ns, lead_ns)

    def _stands(self, now_ns: int) -> bool:
        """Whether no motion is commanded at this moment."""
        return self._executed.stands(now_ns) and all(twist.stands for twist in self._twists)

    def _at_rest(self, now_ns: int) -> bool:
        """Whether no motion is commanded, now or later."""
        return self._executed.at_rest(now_ns) and all(twist.at_rest(now_ns) for twist in self._twists)

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
        for twist in self._twists:
            rests_s = twist.react(goes_back=why is Why.RETREAT)
            self._back_ns = max(self._back_ns, now_ns + round(rests_s * 1e9))
        self.yields += why is Why.CONTACT
        self._executed.follow(whole, reacts=why in (Why.RETREAT, Why.OVER))
        self._number += 1
        commit_ns = now_ns if all_streamed else now_ns + lead_ns
        reaction = Reaction(self._number, why, sentence, streamed, sent, whole, commit_ns)
        self._pending.append(reaction)
        return reaction

    def reactions(self) -> list[Reaction]:
        """Returns the reactions that the node has not taken over yet, and marks them as taken over."""
        pending, self._pending = self._pending, []
        return pending

    def go_on(self) -> None:
        """Chunks move the arm again, and the node knows of all reactions."""
        if not self._pending:
            self.phase = Phase.WATCHING
            for twist in self._twists:
                twist.go_on()

    def forgive(self) -> None:
        """A person has looked at the faults."""
        for watch in self.watches:
            watch.forgive()

    def begin_tare(self) -> None:
        """Tare all sensors that have a bias, while the arm stands still."""
        for watch in self.watches:
            if watch.sensor.tared:
                watch.begin_tare()

    @property
    def contact(self) -> tuple[Level, str]:
        """The greatest contact, and its sentence."""
        worst = max(self.watches, key=lambda watch: watch.level)
        return worst.level, worst.sentence

    @property
    def wrong(self) -> str:
        """The fault of the first sensor that needs a person; empty for none."""
        return next((watch.wrong for watch in self.watches if watch.wrong), "")

    def problem(self, now_ns: int) -> str:
        """One sentence that says why no sensor reading can be relied on now; empty if it can."""
        for watch in self.watches:
            problem = watch.wrong or watch.late(now_ns) or watch.untared
            if problem:
                return problem
        return ""
