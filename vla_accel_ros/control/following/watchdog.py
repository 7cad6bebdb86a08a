"""Which inputs are silent, and what the robot does about it.

Every input that motion depends on has an age limit, measured by its own stamp: a frame that arrives on time
but was taken a second ago is a second old. When one is late the robot stops and holds. It continues by itself
when all inputs have been fresh for a moment. A hold, by an operator or for another reason, lasts until it is
taken back. A stamp further in the future than the limit counts as late too, so after a clock has jumped back
nothing moves before fresh stamps arrive. The reported reasons are causes: when inference is silent, its
cameras are not blamed, and a chunk that is late because of a camera or the joints is left out. While a person
commands the arm, only the joints and the person's own commands count. Time is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from vla_accel_ros.control.following.reasons import roots, unnumbered
from vla_accel_ros.control.kinematics.hand import TF

INFERENCE, CHUNK, CAMERA, JOINT_STATES = "inference", "chunk", "camera/", "joint_states"
OBSERVED = CAMERA, TF
"""Beginnings of inputs that only inference receives."""
TELEOP, DEADMAN = "teleop", "deadman"
"""Inputs of a person who commands the arm."""
INFERENCE_S = 0.6
"""Inference is late when it has reported nothing for this long."""
QUIET_S = 0.25
"""After this much silence of inference, which reports 20 times a second, its inputs are not blamed, and
chunks of later images are somebody else's."""
CLOCK_STANDS = "ROS time stands still"
"""Beginning of the reason from which all late inputs follow."""


@dataclass(frozen=True)
class Late:
    """An input beyond its limit. age_s: None if it was never seen, negative if its stamp is in the future.
    note: what else is known about it; detail: the part of the note that changes every time."""

    name: str
    age_s: float | None
    limit_s: float
    note: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self._sentence(), self.note + self.detail)))

    @property
    def about(self) -> str:
        """What this reason is about: the input, and why it does not come; it does not change from moment to
        moment."""
        return f"{self.name} {unnumbered(self.note)}"

    def named_in(self, sentence: str) -> bool:
        """Whether a sentence is about this input."""
        word = "joint" if self.name == JOINT_STATES else re.escape(self.name.removeprefix(CAMERA))
        return re.search(rf"\b{word}\b", sentence) is not None

    def _sentence(self) -> str:
        if self.age_s is None:
            return f"{self.name} has not come yet"
        if self.age_s < 0:
            return (
                f"{self.name} is stamped {-self.age_s:.2f} s in the future: the clock was set back, or two "
                "clocks differ"
            )
        if self.name == INFERENCE:
            return f"inference has said nothing for {self.age_s:.2f} s: is it running?"
        return f"{self.name} is {self.age_s:.2f} s old, the limit is {self.limit_s:.2f} s"


class Watchdog:
    """Remembers the last stamp of each input. limits_s: name -> greatest age in seconds
    (Contract.max_ages_s).

    Attribute `human`: the inputs of the person who commands the arm; empty while the policy does.
    """

    def __init__(self, limits_s: Mapping[str, float]):
        self._limits_s: dict[str, float] = {}
        self._stamps_ns: dict[str, int] = {}
        self._notes: dict[str, tuple[str, str]] = {}
        self._told_ns: int | None = None  # when inference reported last
        self.human: tuple[str, ...] = ()
        for name, limit_s in limits_s.items():
            self.watch(name, limit_s)

    def watch(self, name: str, limit_s: float) -> None:
        """Watch this input too, from now on. Raises ValueError for a limit that is not above zero."""
        if not limit_s > 0:
            raise ValueError(f"age limit of {name} is {limit_s}: give seconds above zero")
        self._limits_s[name] = limit_s

    def seen(self, name: str, stamp_ns: int) -> None:
        """An input arrived. The last to arrive counts, not the newest stamp. Raises KeyError for an unknown
        name."""
        self._known(name)
        self._stamps_ns[name] = stamp_ns
        self._notes.pop(name, None)

    def seen_chunk(self, stamp_ns: int, now_ns: int) -> None:
        """A chunk arrived. Its stamp is that of its oldest image, so it counts for the cameras too, unless
        inference reports them itself. If inference is silent while chunks of later images come, somebody else
        makes them (a foreign producer), and inference is no longer watched."""
        told_ns = self._told_ns
        quiet = told_ns is not None and stamp_ns > told_ns and now_ns - told_ns > QUIET_S * 1e9
        if quiet and self.reported:
            del self._limits_s[INFERENCE], self._stamps_ns[INFERENCE]
        for name in (CHUNK, *(() if self.reported else self._cameras)):
            self.seen(name, stamp_ns)

    def told(
        self,
        stamps_ns: Mapping[str, int],
        now_ns: int,
        problems: Mapping[str, str] | None = None,
        waiting_for: str = "",
        slow: str = "",
    ) -> None:
        """Take what inference reports about its inputs: the newest stamp of each stream, the problem of each,
        and why it makes no chunks or makes them too slowly. From the second report on inference itself is
        watched; a single one may be a stranger's, and changes nothing."""
        before_ns, self._told_ns = self._told_ns, now_ns
        if not self.reported:
            if before_ns is None or abs(now_ns - before_ns) > INFERENCE_S * 1e9:
                return
            self.watch(INFERENCE, INFERENCE_S)
        self.seen(INFERENCE, now_ns)
        for name in self._cameras:
            if name in stamps_ns:
                self.seen(name, stamps_ns[name])
            if problems and problems.get(name):
                self.note(name, problems[name])
        if waiting_for:
            self.note(CHUNK, f"inference waits: {waiting_for}")
        elif slow and CHUNK not in self._notes:  # a refusal says more
            self.note(CHUNK, slow)

    def note(self, name: str, why: str, detail: str = "") -> None:
        """Add why an input does not come; it is reported with the input's age until the input comes. detail:
        the part that changes every time."""
        self._known(name)
        self._notes[name] = why, detail

    def age_s(self, name: str, now_ns: int) -> float | None:
        """Age of an input by its stamp; None if it was never seen."""
        stamp_ns = self._stamps_ns.get(name)
        return None if stamp_ns is None else (now_ns - stamp_ns) * 1e-9

    def ahead(self, name: str, now_ns: int) -> bool:
        """Whether an input's last stamp is further in the future than its limit."""
        age_s = self.age_s(name, now_ns)
        return age_s is not None and age_s < -self._limits_s[name]

    def late(self, now_ns: int) -> list[Late]:
        """The inputs that are beyond their limits, in the order they were given."""
        ages = (
            (name, self.age_s(name, now_ns), limit)
            for name, limit in self._limits_s.items()
            if self._counts(name)
        )
        return [
            Late(name, age, limit, *self._notes.get(name, ("", "")))
            for name, age, limit in ages
            if age is None or abs(age) > limit
        ]

    def is_late(self, name: str, now_ns: int) -> bool:
        """Whether an input is beyond its limit."""
        return any(stream.name == name for stream in self.late(now_ns))

    def causes(self, now_ns: int) -> list[Late]:
        """The late inputs, without those that are late because of another one."""
        inputs = self.late(now_ns)
        cameras = [stream for stream in inputs if stream.name.startswith(OBSERVED)]
        chunk = [stream for stream in inputs if stream.name == CHUNK]
        remaining = [
            stream for stream in inputs if stream not in cameras + chunk and stream.name != INFERENCE
        ]
        silent_s = self.age_s(INFERENCE, now_ns)
        if silent_s is None:  # cameras are watched by the stamps of chunks
            if not chunk and cameras and CHUNK in self._notes:
                note, detail = self._notes[CHUNK]
                chunk = [replace(cameras[0], name=CHUNK, note=note, detail=detail)]
            return [*(chunk or cameras), *remaining]
        if self.is_late(INFERENCE, now_ns) or (cameras + chunk and silent_s > QUIET_S):
            cause = self._notes.get(INFERENCE, ("", ""))
            return [Late(INFERENCE, silent_s, self._limits_s[INFERENCE], *cause), *remaining]
        streams = [stream for stream in inputs if stream not in chunk]
        return [stream for stream in inputs if stream not in chunk or not _follows(stream, streams)]

    @property
    def reported(self) -> bool:
        """Whether inference reports its inputs."""
        return INFERENCE in self._limits_s

    def _counts(self, name: str) -> bool:
        """Whether an input is needed by whoever commands the arm."""
        if self.human:
            return name == JOINT_STATES or name in self.human
        return name not in (TELEOP, DEADMAN)

    @property
    def _cameras(self) -> tuple[str, ...]:
        return tuple(name for name in self._limits_s if name.startswith(OBSERVED))

    def _known(self, name: str) -> None:
        if name not in self._limits_s:
            raise KeyError(f"{name} is not watched: the watchdog knows {', '.join(self._limits_s)}")


def _follows(chunk: Late, streams: list[Late]) -> bool:
    """Whether a chunk is late because of these streams."""
    return any(stream.named_in(chunk.note) for stream in streams) if chunk.note else bool(streams)


class MotionState(Enum):
    """What the robot is allowed to do."""

    RUNNING = "running"
    STOPPING = "stopping"
    HOLDING = "holding"


class Event(Enum):
    """What changes the state of the motion."""

    BLOCKED = "an input is late, or something holds the robot"
    RESTED = "the commanded motion has ended"
    SETTLED = "all inputs have been fresh for a moment, and nothing holds the robot"


TRANSITIONS: Mapping[MotionState, tuple[Event, MotionState]] = {
    MotionState.RUNNING: (Event.BLOCKED, MotionState.STOPPING),
    MotionState.STOPPING: (Event.RESTED, MotionState.HOLDING),
    MotionState.HOLDING: (Event.SETTLED, MotionState.RUNNING),
}
"""State -> the event that ends it, and the state that follows. A stop that has begun is never taken back:
what was blocked and is free again comes to rest first."""


@dataclass(frozen=True)
class Change:
    """A change of what is allowed. reasons: sentences, empty when it starts running."""

    before: MotionState
    after: MotionState
    reasons: tuple[str, ...]


ANYTHING = ("",)
"""A reason that follows from any other."""
OPERATOR = "held by the operator"
RELEASED = "released to others; ~/reclaim takes the controllers back"
HOMING = "going home"
BRAKING = "coming to rest; everything is fresh again"
SETTLING = "everything is fresh; going on in a moment"


class Safety:
    """RUNNING -> STOPPING -> HOLDING -> RUNNING, by the watchdog and by holds. Starts HOLDING.

    settle_s: how long all inputs must have been fresh before it runs again, so that an input at the edge of
    its limit does not make the robot stutter.

    Attributes: `reasons`, the sentences that follow from no other, empty only while it runs; `causes`, what
    each of them is about, which does not change from moment to moment; `pause`, one more thing it waits for
    before it runs, empty for none.
    """

    def __init__(self, watchdog: Watchdog, settle_s: float = 0.1):
        self.watchdog = watchdog
        self.state = MotionState.HOLDING
        self.reasons: tuple[str, ...] = ()
        self.causes: tuple[str, ...] = ()
        self.pause = ""
        self._settle_ns = round(settle_s * 1e9)
        self._fresh_since_ns: int | None = None
        self._holds: dict[str, Sequence[str]] = {}

    def hold(self, reason: str = OPERATOR, follows: Sequence[str] = ()) -> None:
        """Stop at the next step and stay stopped until `resume` takes this reason back. follows: beginnings
        of reasons from which this one follows."""
        self._holds[reason] = follows

    def resume(self, reason: str = OPERATOR) -> None:
        """Take a hold back. It runs when there is none and all inputs are fresh."""
        self._holds.pop(reason, None)

    def clear(self, now_ns: int) -> bool:
        """Whether there is no hold and no late input."""
        return not self._holds and not self.watchdog.late(now_ns)

    def step(self, now_ns: int, at_rest: bool) -> Change | None:
        """Check the inputs. Returns the change of what is allowed, if any; at most one per step.

        at_rest: whether the commanded motion has ended. On a change to STOPPING, send a stop.
        """
        abouts = {str(stream): stream.about for stream in self.watchdog.causes(now_ns)}
        reasons = roots(self._holds | dict.fromkeys(abouts, (CLOCK_STANDS,)))
        if reasons:
            self._fresh_since_ns = None
        elif self._fresh_since_ns is None or self._fresh_since_ns > now_ns:
            self._fresh_since_ns = now_ns
        previous, (event, next_state) = self.state, TRANSITIONS[self.state]
        if event in self._events(now_ns, at_rest, bool(reasons)):
            self.state = next_state
        if not reasons and self.state is not MotionState.RUNNING:
            waiting = BRAKING if self.state is MotionState.STOPPING else self.pause or SETTLING
            reasons = [waiting]
        self.reasons = tuple(reasons)
        self.causes = tuple(abouts.get(reason) or unnumbered(reason) for reason in reasons)
        return None if self.state is previous else Change(previous, self.state, self.reasons)

    def _events(self, now_ns: int, at_rest: bool, blocked: bool) -> set[Event]:
        fresh_ns = -1 if self._fresh_since_ns is None else now_ns - self._fresh_since_ns
        events = {
            Event.BLOCKED: blocked,
            Event.RESTED: at_rest,
            Event.SETTLED: fresh_ns >= self._settle_ns and not self.pause,
        }
        return {event for event, holds in events.items() if holds}
