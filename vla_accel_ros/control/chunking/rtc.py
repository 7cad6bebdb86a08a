"""Real-time chunking in the loop: each new chunk is made to agree with the one that the robot is executing.

While a chunk is computed the robot goes on with the one before, so the leading actions of the new one are
past before it comes. They are held to what is executed meanwhile, and the few after them more and more
loosely, so the new chunk continues the old motion by construction and needs no crossfade (Black et al., 2025,
"Real-time execution of action chunking flow policies"); a policy that was trained for it is simply given
them. How many are past is measured on every chunk, never assumed: the longest of the last few delays, because
a mask that is too short breaks the motion and one that is a step too long only answers a step later. There is
nothing to agree with at first, after another instruction, and while the robot does not execute what it is
sent. Of a further chunk from the same frame more is past than of the first: what its frame's age is as it
begins, and the longest time that chunks took.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from vla_accel_ros.engine.request import ACT, Request
from vla_accel_ros.types import Agreement, Chunk

if TYPE_CHECKING:  # the engine is only called, so that control stays free of torch
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.engine.kv.pool import Prefix

Method = Literal["guidance", "trained"]
METHODS: tuple[Method, ...] = ("guidance", "trained")
Mask = Literal["hard", "linear", "exponential"]
SCHEDULES: dict[Mask, str] = {"hard": "ONES", "linear": "LINEAR", "exponential": "EXP"}


@dataclass(frozen=True)
class RtcSettings:
    """How a new chunk agrees with the old.

    mask: weights of the actions after the delay, over the mask's horizon: full (hard), or falling to none.
    mask_horizon: how many actions after the delay must agree at all. Guidance corrects an action at every
        denoising step, so that a weight of 0.3 keeps 70 to 80 % of the old plan (models.flow.rtc.kept): a
        longer mask is smoother, and slower to answer to what has changed in the scene.
    delivery_s: from a finished chunk to the first motion that it can change (transport, and the lead of the
        trajectory buffer).
    window: how many of the last delays the longest is taken of.
    method: guidance, which any policy takes; or trained, for a policy trained to be given what is executed
        meanwhile (models.flow.committed): the chunk then begins with exactly that, no mask is needed, and it
        costs nothing. While the delay is longer than it was trained for, its chunks are guided.
    """

    mask: Mask = "exponential"
    mask_horizon: int = 8
    delivery_s: float = 0.06
    window: int = 10
    method: Method = "guidance"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method = {self.method!r} is unknown: choose {' or '.join(METHODS)}")
        if self.mask not in SCHEDULES:
            raise ValueError(f"mask = {self.mask!r} is unknown: choose {' or '.join(SCHEDULES)}")
        if self.mask_horizon < 0:
            raise ValueError(f"mask_horizon = {self.mask_horizon} must not be negative: 0 is the delay alone")
        if not 0.0 <= self.delivery_s < math.inf:
            raise ValueError(f"delivery_s = {self.delivery_s} is no time: give seconds, 0 or more")
        if self.window < 1:
            raise ValueError(f"window = {self.window} remembers no delay: give at least 1")


class _Begun(NamedTuple):
    """A request as it began. again: its frame had a chunk before."""

    age: int
    now_ns: int
    again: bool


class _Executing(NamedTuple):
    chunk: Chunk
    instruction: str


class RealTimeChunking:
    """Makes each chunk agree with the last one that was made: `begin` and `made` frame every action request,
    of which several may be unfinished. Safe to use from several threads.

    engine: computes the chunks. clock_ns: the ROS clock that observations are stamped by.
    jacobian: see models.flow.rtc.

    Attributes for diagnostics: `counts` (guided or trained, and what was neither: first, instruction,
    embodiment, no_overlap, clock_jumps, and what it was paused for).
    """

    def __init__(
        self,
        engine: Engine,
        clock_ns: Callable[[], int],
        settings: RtcSettings = RtcSettings(),
        jacobian: str = "identity",
    ) -> None:
        if settings.method == "trained" and not engine.policy.trained_delay:
            raise ValueError(
                "method = 'trained' needs a policy that was trained to be given committed actions "
                "(rtc_training_max_delay in its config.json), and this one was not: choose guidance"
            )
        self.settings, self.counts = settings, Counter[str]()
        self._engine, self._clock_ns, self._jacobian = engine, clock_ns, jacobian
        self._delivery_s = settings.delivery_s
        self._ages_s: tuple[float, ...] = ()  # replaced, never changed: others read it
        self._took_s: tuple[float, ...] = ()  # from a chunk's beginning to its end
        self._newest_ns: int | None = None  # the frame that a chunk was begun on last
        self._lock = threading.Lock()
        self._previous: _Executing | None = None
        self._paused = ""
        self._age = 0
        self._begun: WeakKeyDictionary[Request, _Begun] = WeakKeyDictionary()

    @property
    def delay_s(self) -> float | None:
        """From an image to the motion it changes: the longest of the last frames' first chunks; None before
        one."""
        ages_s = self._ages_s
        return max(ages_s) + self._delivery_s if ages_s else None

    def delay_steps(self, step_dt_s: float) -> int | None:
        """How many leading actions of a chunk are past by then; None before the first chunk."""
        return _steps(self.delay_s, step_dt_s)

    def begin(self, request: Request) -> None:
        """Make an action request agree with the chunk that is being executed, if there is one."""
        stamp_ns, now_ns = request.frame.stamp_ns, self._clock_ns()
        with self._lock:
            begun = _Begun(self._age, now_ns, again=stamp_ns == self._newest_ns)
            self._begun[request], self._newest_ns = begun, stamp_ns
            delay_s = self._again_s(now_ns - stamp_ns) if begun.again else self.delay_s
            previous = self._agreeing(request.frame, delay_s)
        if previous is not None:
            request.agreement = self._agreement(previous, stamp_ns, delay_s)
            self.counts["trained" if request.agreement.method == "trained" else "guided"] += 1

    def committed(self, stamp_ns: int) -> int | None:
        """How many leading actions of a further chunk from the frame of that stamp would be past when it
        came, if it began now; None while there is nothing that it could agree with."""
        age_ns = self._clock_ns() - stamp_ns
        with self._lock:
            previous, delay_s = self._previous, self._again_s(age_ns)
            if previous is None or age_ns < 0 or stamp_ns < previous.chunk.stamp_ns:
                return None
            if not self._overlaps(previous.chunk, stamp_ns, delay_s):
                return None
            return _steps(delay_s, previous.chunk.step_dt_s)

    def made(self, request: Request) -> None:
        """The chunk of a request that was begun here was computed."""
        chunk, agreement = request.result, request.agreement
        assert isinstance(chunk, Chunk)
        committed = None if agreement is None else agreement.actions[: agreement.delay]
        now_ns = self._clock_ns()
        with self._lock:
            begun = self._begun.pop(request)
            self._measure(now_ns, begun, chunk.stamp_ns)
            if begun.age == self._age and not self._paused:
                self._previous = _Executing(_behind(committed, chunk), request.instruction)

    def act(self, prefix: Prefix, state: np.ndarray | None = None, noise: np.ndarray | None = None) -> Chunk:
        """A chunk from a prefix, as Engine.act, that goes on from the chunk that is being executed."""
        request = Request(ACT, prefix.robot, prefix=prefix, state=state, noise=noise, on_begin=self.begin)
        scheduler = self._engine.scheduler
        self.made(scheduler.wait(scheduler.submit(request)))
        assert isinstance(request.result, Chunk)
        return request.result

    def forget(self) -> None:
        """Agree with nothing that was made so far: the robot was moved, or the scene is another."""
        with self._lock:
            self._previous, self._age = None, self._age + 1

    def pause(self, why: str = "paused") -> None:
        """The robot does not execute chunks, or not as they are: guide none of them until `resume`.

        why: what they are counted as.
        """
        with self._lock:
            self._paused, self._previous, self._age = why, None, self._age + 1

    def resume(self, lead_s: float = 0.0) -> None:
        """The robot executes chunks again; the next one is free.

        lead_s: how long after its delivery a chunk changes the motion, where the settings do not have it.
        """
        with self._lock:
            self._paused, self._previous, self._age = "", None, self._age + 1
            self._delivery_s = self.settings.delivery_s + lead_s

    def lead(self, lead_s: float) -> None:
        """Chunks change the motion this long after their delivery from now on; see `resume`."""
        with self._lock:
            self._delivery_s = self.settings.delivery_s + lead_s

    def _again_s(self, age_ns: int) -> float | None:
        """As delay_s, of a further chunk from a frame that is so old; None before the first chunk."""
        return age_ns * 1e-9 + max(self._took_s) + self._delivery_s if self._took_s else None

    def _agreement(self, previous: Chunk, stamp_ns: int, delay_s: float | None) -> Agreement:
        """What a chunk observed at stamp_ns must agree with."""
        delay = _steps(delay_s, previous.step_dt_s)
        assert delay is not None
        rest, number = previous.rest(stamp_ns).astype(np.float32), previous.request_id
        given = max(delay, 1)
        if self.settings.method == "trained" and given <= self._engine.policy.trained_delay:
            return Agreement("trained", rest[:given], delay, given, "", "", 0.0, number)
        end, schedule = delay + self.settings.mask_horizon, SCHEDULES[self.settings.mask]
        strength = float(self._engine.config.steps)
        return Agreement(
            "guidance", rest[: max(end, 1)], delay, end, schedule, self._jacobian, strength, number
        )

    def _agreeing(self, prefix: Prefix, delay_s: float | None) -> Chunk | None:
        """The chunk that the next one must agree with; None, and counted why, when there is none."""
        previous = self._previous
        if previous is None:
            why = self._paused or "first"
        elif prefix.stamp_ns < previous.chunk.stamp_ns:
            why = "clock_jumps"
            self._ages_s = self._took_s = ()
        elif prefix.instruction != previous.instruction:
            why = "instruction"
        elif not _of_embodiment(previous.chunk, prefix):
            why = "embodiment"
        elif not self._overlaps(previous.chunk, prefix.stamp_ns, delay_s):
            why = "no_overlap"
        else:
            return previous.chunk
        self.counts[why] += 1
        return None

    def _overlaps(self, chunk: Chunk, stamp_ns: int, delay_s: float | None) -> bool:
        """Whether the robot still executes `chunk` when one observed at stamp_ns comes to it."""
        delay = _steps(delay_s, chunk.step_dt_s)
        passed = (stamp_ns - chunk.stamp_ns) / (chunk.step_dt_s * 1e9)
        return delay is not None and passed + max(delay, 1) <= chunk.executed

    def _measure(self, now_ns: int, begun: _Begun, stamp_ns: int) -> None:
        """A chunk was made. What a further chunk of a frame took does not count for those of a new one."""
        age_ns, took_ns = now_ns - stamp_ns, now_ns - begun.now_ns
        if min(age_ns, took_ns) < 0:  # the clock was set back while the chunk was computed
            self._ages_s = self._took_s = ()
            return
        self._took_s = (*self._took_s, took_ns * 1e-9)[-self.settings.window :]
        if not begun.again:
            self._ages_s = (*self._ages_s, age_ns * 1e-9)[-self.settings.window :]


def _steps(delay_s: float | None, step_dt_s: float) -> int | None:
    """A time in whole actions, rounded up."""
    return None if delay_s is None else math.ceil(delay_s / step_dt_s - 1e-6)


def _of_embodiment(chunk: Chunk, prefix: Prefix) -> bool:
    """Whether the robot of a frame still counts its actions as it did in a chunk."""
    robot = prefix.embodiment
    return (chunk.step_dt_s, chunk.actions.shape[1]) == (robot.step_dt_s, robot.policy.joints)


def _behind(committed: np.ndarray | None, chunk: Chunk) -> Chunk:
    """What the robot executes of a chunk: until it comes, what was committed before, [d, D].

    Not the chunk's own leading actions, though they were guided to be the same: where chunks overtake each
    other (one begun before the last has come) small errors would be copied from chunk to chunk, and grow.
    """
    if committed is None:
        return chunk
    actions = np.concatenate([committed, chunk.actions[len(committed) :]])
    return replace(chunk, actions=actions)
