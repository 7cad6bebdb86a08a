"""Chunks of twists: velocities of the hand, or of a mobile base, instead of joint positions.

There is no path to join or to hold, only a velocity for each moment: that of the action that is due, and zero
before the first and after the last. The hand's speed is limited as a whole, so that its direction stays. It
changes by no more than full speed in RAMP_S, or than a base may accelerate. This ramp blends chunks, starts
the motion, and stops it when chunks cease. As with joints, old, overtaken and repeated chunks change nothing,
and a chunk that is far too fast is refused.

With a force sensor the hand can go back the way it came: the velocities of the last moments are commanded in
reverse order and direction, from where the hand has come to rest.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from vla_accel_ros.control.command_stream import Ticks
from vla_accel_ros.control.kinematics.led import Tip
from vla_accel_ros.control.trajectory import check_finite
from vla_accel_ros.types import Chunk

_COLUMNS = tuple(f"{half}.{axis}" for half in ("linear", "angular") for axis in "xyz")
# Time from full speed to a stop.
RAMP_S = 0.15
MOST_REMEMBERED = 4096
"""Ticks of the way by which the hand came, and of the way back."""
TOO_FAST = 20.0
"""How many times faster than its limit a hand may be asked to move. What is faster is not meant: it is in
another unit, such as mm or degrees."""
_STOOD_S = 0.1

Given = ParamSpec("Given")
Made = TypeVar("Made")


def _locked(
    method: Callable[Concatenate[TwistBuffer, Given], Made],
) -> Callable[Concatenate[TwistBuffer, Given], Made]:
    """One call at a time."""

    @wraps(method)
    def locked(self: TwistBuffer, /, *given: Given.args, **named: Given.kwargs) -> Made:
        with self._lock:
            return method(self, *given, **named)

    return locked


class WayBack(NamedTuple):
    """How far the hand may go back from a contact: at most so many m and rad, for at most s seconds, at this
    share of the speed at which it came."""

    m: float
    rad: float
    s: float
    speed: float


class TwistBuffer:
    """The velocity of the hand over time. Time is given. Safe to use from several threads: with a force
    sensor one thread ticks and reacts to contacts, and another takes the chunks.

    per: "step" if an action is a displacement [m, rad], "second" if it is a velocity [m/s, rad/s].
    linear, angular: greatest speeds [m/s], [rad/s].
    period_s: time between two ticks.
    mode: `block` starts a chunk when it arrives, and executes it to its end (or its execution_horizon) before
        the next; in the other modes actions are due by the observation's stamp, and each chunk replaces the
        previous.
    way_back: from a contact; None: the hand only stops.
    columns, places: which of a chunk's columns count, and which of the six numbers they are.
    accelerations: greatest ones [m/s^2], [rad/s^2]; None: full speed in RAMP_S.
    stood_s: after a longer pause between two ticks, what was moved has stopped by itself.
    what: is moved. tip: where that is, if it may not go everywhere or is sent as a pose.

    Attributes for diagnostics: `counts` (accepted, past, out_of_order, early; after_contact: refused because
    of a contact; limited: actions that were too fast; steered: commands of a person).
    """

    def __init__(
        self,
        per: str,
        linear: float,
        angular: float,
        period_s: float,
        mode: str = "blend",
        execution_horizon: int | None = None,
        way_back: WayBack | None = None,
        columns: slice = slice(6),
        places: Sequence[int] = range(6),
        accelerations: tuple[float, float] | None = None,
        stood_s: float = _STOOD_S,
        what: str = "hand",
        tip: Tip | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._lock, self._way_back = threading.RLock(), way_back
        capacity = 0.0 if way_back is None else way_back.s * way_back.speed / period_s + 1.0
        remembered = math.ceil(min(capacity, MOST_REMEMBERED))
        # Velocities that were commanded, and for how long.
        self._past = deque[tuple[np.ndarray, float]](maxlen=remembered)
        self._per_step, self._period_s, self._ticks = per == "step", period_s, Ticks(period_s)
        self._most = np.array([linear, angular])
        self._ramp = self._most / RAMP_S if accelerations is None else np.array(accelerations)
        self.columns, self._places, self._stood_s, self._what = columns, list(places), stood_s, what
        self.tip = tip
        if tip is not None and tip.box is not None:
            self._ramp = self._ramp / 2.0  # the other half is for what keeps it inside
        self._block, self._execution_horizon = mode == "block", execution_horizon
        self.forget()

    @_locked
    def forget(self) -> None:
        """Command nothing until the next chunk."""
        self._velocity = np.zeros(6)
        self._rows: np.ndarray | None = None
        self._start_ns = self._end_ns = self._step_ns = 0
        self._newest: tuple[int, int] | None = None
        self._tick_ns: int | None = None
        self._reacts = self._back_due = self._went_back = False
        self._past.clear()
        if self.tip is not None:
            self.tip.forget()

    @_locked
    def update(self, chunk: Chunk, now_ns: int) -> bool:
        """Take a chunk whose actions are [H, 6] or wider (the first six columns count). Returns whether it
        changes the motion. Raises ValueError as `check` does."""
        self.check(chunk)
        actions = self._twists(chunk)[: chunk.executed]
        if self._block and self._execution_horizon is not None:
            actions = actions[: self._execution_horizon]
        step_ns = round(chunk.step_dt_s * 1e9)
        start_ns = now_ns if self._block else chunk.stamp_ns
        end_ns = start_ns + step_ns * len(actions)
        number = (chunk.stamp_ns, chunk.request_id)
        if self._reacts:
            self.counts["after_contact"] += 1
            return False
        if self._newest is not None and number <= self._newest:
            verdict = "out_of_order"
        elif self._block and min(now_ns, chunk.stamp_ns) < self._end_ns:
            verdict = "early"
        else:
            verdict = "accepted" if now_ns < end_ns else "past"
        self.counts[verdict] += 1
        if verdict != "accepted":
            return False
        self._rows = self._limited(actions * self._rate(chunk))
        self._start_ns, self._end_ns, self._step_ns, self._newest = start_ns, end_ns, step_ns, number
        return True

    @_locked
    def steer(self, velocity: np.ndarray, now_ns: int, until_ns: int) -> None:
        """Follow what a person commands, float64 [6], m/s and rad/s; it brakes from until_ns on."""
        if not self._reacts:
            self._rows, self._start_ns, self._end_ns = self._limited(velocity[None]), now_ns, until_ns
            self._step_ns = max(1, until_ns - now_ns)
            self.counts["steered"] += 1

    def check(self, chunk: Chunk) -> None:
        """Raises ValueError for fewer columns, for numbers that are not finite, and for actions that are
        TOO_FAST."""
        actions = np.asarray(chunk.actions)
        if actions.ndim != 2 or actions.shape[1] < len(self._places):
            raise ValueError(
                f"chunk actions have shape {actions.shape}: a {self._what} needs {len(self._places)} columns"
            )
        twists = self._twists(chunk)
        check_finite(f"actions of the {self._what}", twists, _COLUMNS)
        halves = self._rate(chunk) * twists.reshape(-1, 2, 3)
        times = np.linalg.norm(halves, axis=2) / self._most
        far = np.argwhere(times > TOO_FAST)
        if len(far):
            row, half = far[0]
            (verb, unit), by = (("moves", "m/s"), ("turns", "rad/s"))[half], times[row, half]
            raise ValueError(
                f"chunk {chunk.request_id}: action {row} {verb} the {self._what} {by:.3g} times as fast as "
                f"the contract's {self._most[half]:g} {unit}: are the policy and the contract of one unit?"
            )

    def _twists(self, chunk: Chunk) -> np.ndarray:
        """float64 [H, 6]."""
        actions = np.asarray(chunk.actions, dtype=np.float64)[:, self.columns]
        twists = np.zeros((len(actions), 6))
        twists[:, self._places] = actions
        return twists

    def _rate(self, chunk: Chunk) -> float:
        return 1.0 / chunk.step_dt_s if self._per_step else 1.0

    @_locked
    def stop(self) -> None:
        """Come to a stop; a later chunk moves the hand again. Does nothing after a contact: that ends at rest
        by itself."""
        if not self._reacts:
            self._brake()

    @_locked
    def react(self, goes_back: bool) -> float:
        """Come to a stop because of a contact, and then go back the way the hand came, if `goes_back`. Chunks
        are refused until `go_on`. Returns the seconds until it has come to a stop."""
        self._reacts, self._back_due = True, goes_back and self._way_back is not None
        self._brake()
        speeds = np.linalg.norm(self._velocity.reshape(2, 3), axis=1)
        return float((speeds / self._ramp).max())

    @_locked
    def go_on(self) -> None:
        """Chunks move the hand again."""
        if self._reacts:
            self._reacts = self._back_due = self._went_back = False
            self._brake()

    def _brake(self) -> None:
        if self._rows is not None:
            self._rows, self._end_ns = np.zeros((1, 6)), 0

    @_locked
    def restart(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Come to a stop after the clock has jumped; now_ns is in the new time."""
        self._back_due = False
        self._past.clear()
        self._brake()
        self._newest = None
        if steady_ns is None:
            self._tick_ns = now_ns

    @_locked
    def tick(self, now_ns: int, steady_ns: int | None = None) -> np.ndarray | None:
        """Linear and angular velocity, float64 [6], to command now; None before the first chunk.

        steady_ns: the present by a clock that is never set; None if now_ns comes from such a clock.
        """
        if steady_ns is None:
            self._ticks.at(now_ns)
        if self._rows is None:
            return None
        tick_ns = now_ns if steady_ns is None else steady_ns
        passed_s = self._ticks.longest_s if self._tick_ns is None else (tick_ns - self._tick_ns) * 1e-9
        self._tick_ns = tick_ns
        step_s = min(max(passed_s, 0.0), self._ticks.longest_s)
        if self.tip is not None:
            self.tip.advance(self._velocity, step_s, now_ns)
        if passed_s > self._stood_s:
            self._velocity = np.zeros(6)
            self._past.clear()
        elif self._velocity.any() and not self._went_back:  # the way back leads to where it would lead from
            self._past.append((self._velocity, max(passed_s, 0.0)))
        if self._back_due and not self._velocity.any():
            self._back_due = False
            self._go_back(now_ns)
        change = (self._wanted(now_ns) - self._velocity).reshape(2, 3)
        step = self._ramp * step_s
        size = np.linalg.norm(change, axis=1)
        share = np.divide(step, size, out=np.ones(2), where=size > step)
        velocity = self._velocity + (change * share[:, None]).ravel()
        if self.tip is not None:
            ahead_s = self._ticks.longest_s
            velocity = self.tip.bounded(self._velocity, velocity, float(self._ramp[0]), step_s, ahead_s)
        self._velocity = velocity
        return self._velocity

    @_locked
    def at_rest(self, now_ns: int) -> bool:
        """Whether the hand is at rest and nothing is left to execute; also before the first chunk."""
        ended = now_ns >= self._end_ns and not self._back_due
        return self._rows is None or (ended and not self._velocity.any())

    @property
    def stands(self) -> bool:
        """Whether no motion is commanded at this moment."""
        return not self._velocity.any()

    def _go_back(self, now_ns: int) -> None:
        """Execute the way back, a tick at a time; the brake at its end is within its bounds, too."""
        way_back, past = self._way_back, list(reversed(self._past))
        self._past.clear()
        self._went_back = True
        if way_back is None or not past:
            return
        tick_s = self._period_s
        ends_s = np.cumsum([lasted_s for _, lasted_s in past]) / way_back.speed
        ticks = math.ceil(min(ends_s[-1] / tick_s, way_back.s // tick_s, MOST_REMEMBERED))
        index = np.searchsorted(ends_s, tick_s * (np.arange(ticks) + 0.5)).clip(max=len(past) - 1)
        rows = -way_back.speed * np.array([velocity for velocity, _ in past])[index]
        size = np.linalg.norm(rows.reshape(ticks, 2, 3), axis=2)
        way = (size * tick_s).cumsum(axis=0) + 0.5 * size * size / self._ramp
        beyond = (way > (way_back.m, way_back.rad)).any(axis=1)
        rows = rows[: int(beyond.argmax())] if beyond.any() else rows
        if len(rows):
            self._rows, self._start_ns, self._step_ns = rows, now_ns, round(tick_s * 1e9)
            self._end_ns = now_ns + self._step_ns * len(rows)

    def _wanted(self, now_ns: int) -> np.ndarray:
        if self._rows is None or not self._start_ns <= now_ns < self._end_ns:
            return np.zeros(6)
        return self._rows[(now_ns - self._start_ns) // self._step_ns]

    def _limited(self, rows: np.ndarray) -> np.ndarray:
        halves = rows.reshape(len(rows), 2, 3)
        size = np.linalg.norm(halves, axis=2)
        self.counts["limited"] += int((size > self._most * (1.0 + 1e-6)).any(axis=1).sum())
        share = np.divide(self._most, size, out=np.ones_like(size), where=size > self._most)
        return (halves * share[:, :, None]).reshape(len(rows), 6)
