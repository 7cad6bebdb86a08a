"""Real-time chunking in the loop: makes each new chunk agree with the one that the robot is executing.

The robot executes the previous chunk while the next one is computed, so the leading actions of the new chunk
are past when it arrives. Guidance holds them to what is executed meanwhile, and the next few more and more
loosely, so the new chunk continues the old motion and needs no crossfade (Black et al., 2025, "Real-time
execution of action chunking flow policies"). A policy that was trained for this gets those actions as input
instead. The number of past actions comes from the longest of the last few measured delays: too short a mask
breaks the motion, one that is a step too long only reacts a step later. There is nothing to agree with for
the first chunk, after a new instruction, and while the robot does not execute its chunks. A further chunk
from the same frame has more past actions: its delay is the frame's age at its start plus the longest
computing time.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from vla_accel_ros.control.limits.joint_limits import near
from vla_accel_ros.engine.request import Act, Request
from vla_accel_ros.option import check_options, option
from vla_accel_ros.types import Agreement, Chunk

if TYPE_CHECKING:  # the engine is only called; control stays free of torch
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.engine.kv.prefixes import Prefix

SCHEDULES = {"hard": "ONES", "linear": "LINEAR", "exponential": "EXP"}


@dataclass(frozen=True)
class RtcSettings:
    """How a new chunk agrees with the previous one; of the node inference the parameters rtc_...

    Guidance corrects an action at every denoising step, so a weight of 0.3 keeps 70 to 80 % of the old plan
    (models.flow.rtc.kept). A policy that takes the actions executed meanwhile as input
    (models.flow.committed) begins its chunk with exactly those, which needs no mask and costs nothing; a
    chunk whose delay is longer than it was trained for is guided. Raises ValueError, one sentence.
    """

    method: str = option(
        "guidance",
        "How chunks agree: guidance works with any policy; trained is for a policy trained to take the "
        "actions executed meanwhile as input (rtc_training_max_delay in its config.json).",
        choices=("guidance", "trained"),
    )
    mask: str = option(
        "exponential",
        "How strongly the actions after the delay must agree, over rtc_mask_horizon: fully (hard), or "
        "falling.",
        choices=tuple(SCHEDULES),
    )
    mask_horizon: int = option(
        8,
        "How many actions after the delay must agree; more is smoother, but reacts later.",
        minimum=0,
        maximum=10_000,
    )
    window: int = option(10, "Number of recent chunks whose longest delay counts.", minimum=1, maximum=10_000)
    delivery_s: float = option(
        0.06,
        "Time from a finished chunk to its arrival at the trajectory node, whose lead_s is added [s].",
        minimum=0.0,
        maximum=1.0,
        in_nodes={"default": 0.01},
    )
    jacobian: str = option(
        "identity",
        "How guidance pulls the error back: identity is free, exact a backward pass per denoising step.",
        choices=("identity", "exact"),
    )

    def __post_init__(self) -> None:
        check_options(self)


class _Begun(NamedTuple):
    """A request when it began. age: how often agreement was reset before. again: its frame already had a
    chunk."""

    age: int
    now_ns: int
    again: bool


class _Executing(NamedTuple):
    chunk: Chunk
    instruction: str


class RealTimeChunking:
    """Makes each chunk agree with the last one. Call `begin` when an action request starts and `made` when
    its chunk is computed; several requests may be unfinished. Safe to use from several threads.

    engine: computes the chunks. clock_ns: the ROS clock that stamps the observations. turns: see
    Contract.turns: a joint may be observed a whole turn from where it was observed for the last chunk; None
    if none may.

    Attributes for diagnostics: `counts` (guided or trained; and why a chunk was neither: first, instruction,
    embodiment, no_overlap, clock_jumps, or the reason for a pause).
    """

    def __init__(
        self,
        engine: Engine,
        clock_ns: Callable[[], int],
        settings: RtcSettings = RtcSettings(),
        turns: np.ndarray | None = None,
    ) -> None:
        if settings.method == "trained" and not engine.policy.trained_delay:
            raise ValueError(
                "method = 'trained' needs a policy that was trained to be given committed actions "
                "(rtc_training_max_delay in its config.json), and this one was not: choose guidance"
            )
        self.settings, self.counts = settings, Counter[str]()
        self._engine, self._clock_ns, self._turns = engine, clock_ns, turns
        self._delivery_s = settings.delivery_s
        self._ages_s: tuple[float, ...] = ()  # replaced, never changed, so that other threads may read it
        self._took_s: tuple[float, ...] = ()  # computing times of the last chunks
        self._newest_ns: int | None = None  # stamp of the frame that the last chunk was begun on
        self._lock = threading.Lock()
        self._previous: _Executing | None = None
        self._paused = ""
        self._age = 0
        self._begun: WeakKeyDictionary[Request, _Begun] = WeakKeyDictionary()

    @property
    def delay_s(self) -> float | None:
        """Longest recent time from an image to the motion that it changes, over first chunks of frames; None
        before the first."""
        ages_s = self._ages_s
        return max(ages_s) + self._delivery_s if ages_s else None

    def delay_steps(self, step_dt_s: float) -> int | None:
        """Number of leading actions of a chunk that are past after delay_s; None before the first chunk."""
        return _steps(self.delay_s, step_dt_s)

    def begin(self, request: Request) -> None:
        """Make an action request agree with the executing chunk, if there is one."""
        stamp_ns, now_ns = request.frame.stamp_ns, self._clock_ns()
        with self._lock:
            begun = _Begun(self._age, now_ns, again=stamp_ns == self._newest_ns)
            self._begun[request], self._newest_ns = begun, stamp_ns
            delay_s = self._again_s(now_ns - stamp_ns) if begun.again else self.delay_s
            previous = self._agreeing(request.frame, delay_s)
        if previous is not None:
            state = request.frame.state if request.act.state is None else request.act.state
            agreement = self._agreement(self._turned(previous, state), stamp_ns, delay_s)
            request.wish = replace(request.act, agreement=agreement)
            self.counts["trained" if agreement.method == "trained" else "guided"] += 1

    def committed(self, stamp_ns: int) -> int | None:
        """If a further chunk from the frame with this stamp began now, this many of its leading actions would
        be past on arrival; None if there is no chunk to agree with."""
        age_ns = self._clock_ns() - stamp_ns
        with self._lock:
            previous, delay_s = self._previous, self._again_s(age_ns)
            if previous is None or age_ns < 0 or stamp_ns < previous.chunk.stamp_ns:
                return None
            if not self._overlaps(previous.chunk, stamp_ns, delay_s):
                return None
            return _steps(delay_s, previous.chunk.step_dt_s)

    def made(self, request: Request) -> None:
        """The chunk of a request that was begun here is computed."""
        chunk, agreement = request.result, request.act.agreement
        assert isinstance(chunk, Chunk)
        committed = None if agreement is None else agreement.actions[: agreement.delay]
        now_ns = self._clock_ns()
        with self._lock:
            begun = self._begun.pop(request)
            self._measure(now_ns, begun, chunk.stamp_ns)
            if begun.age == self._age and not self._paused:
                self._previous = _Executing(_behind(committed, chunk), request.instruction)

    def act(self, prefix: Prefix, state: np.ndarray | None = None, noise: np.ndarray | None = None) -> Chunk:
        """Computes a chunk from a prefix, as Engine.act does, that continues the executing chunk."""
        request = Request(Act(state=state, noise=noise, on_begin=self.begin), prefix.robot, prefix)
        scheduler = self._engine.scheduler
        self.made(scheduler.wait(scheduler.submit(request)))
        assert isinstance(request.result, Chunk)
        return request.result

    def forget(self) -> None:
        """Agree with no chunk made so far, because the robot was moved or the scene changed."""
        with self._lock:
            self._previous, self._age = None, self._age + 1

    def pause(self, why: str = "paused") -> None:
        """Guide no chunk until `resume`, because the robot does not execute chunks, or not as they are.

        why: the key in `counts` for these chunks.
        """
        with self._lock:
            self._paused, self._previous, self._age = why, None, self._age + 1

    def resume(self, lead_s: float = 0.0) -> None:
        """The robot executes chunks again; the next one is not guided.

        lead_s: how long after its delivery a chunk changes the motion, on top of the settings' delivery_s.
        """
        with self._lock:
            self._paused, self._previous, self._age = "", None, self._age + 1
            self._delivery_s = self.settings.delivery_s + lead_s

    def lead(self, lead_s: float) -> None:
        """From now on a chunk changes the motion this long after its delivery; see `resume`."""
        with self._lock:
            self._delivery_s = self.settings.delivery_s + lead_s

    def _again_s(self, age_ns: int) -> float | None:
        """The delay of a further chunk from a frame of this age; None before the first chunk."""
        return age_ns * 1e-9 + max(self._took_s) + self._delivery_s if self._took_s else None

    def _turned(self, previous: Chunk, state: np.ndarray) -> Chunk:
        """The executing chunk, its relative actions of continuous joints in the turn of the new state,
        [D]."""
        if self._turns is None or not self._turns.any():
            return previous
        return replace(previous, actions=near(previous.actions, state[: len(self._turns)], self._turns))

    def _agreement(self, previous: Chunk, stamp_ns: int, delay_s: float | None) -> Agreement:
        """What a chunk observed at stamp_ns must agree with."""
        delay = _steps(delay_s, previous.step_dt_s)
        assert delay is not None
        remainder, number = previous.rest(stamp_ns).astype(np.float32), previous.request_id
        prefix = max(delay, 1)
        if self.settings.method == "trained" and prefix <= self._engine.policy.trained_delay:
            return Agreement("trained", remainder[:prefix], delay, prefix, "", "", 0.0, number)
        end, schedule = delay + self.settings.mask_horizon, SCHEDULES[self.settings.mask]
        jacobian, strength = self.settings.jacobian, float(self._engine.config.steps)
        return Agreement(
            "guidance", remainder[: max(end, 1)], delay, end, schedule, jacobian, strength, number
        )

    def _agreeing(self, prefix: Prefix, delay_s: float | None) -> Chunk | None:
        """The chunk that the next one must agree with. If there is none, returns None and counts the
        reason."""
        previous = self._previous
        if previous is None:
            reason = self._paused or "first"
        elif prefix.stamp_ns < previous.chunk.stamp_ns:
            reason = "clock_jumps"
            self._ages_s = self._took_s = ()
        elif prefix.instruction != previous.instruction:
            reason = "instruction"
        elif not _of_embodiment(previous.chunk, prefix):
            reason = "embodiment"
        elif not self._overlaps(previous.chunk, prefix.stamp_ns, delay_s):
            reason = "no_overlap"
        else:
            return previous.chunk
        self.counts[reason] += 1
        return None

    def _overlaps(self, chunk: Chunk, stamp_ns: int, delay_s: float | None) -> bool:
        """Whether the robot still executes `chunk` when one observed at stamp_ns arrives."""
        delay = _steps(delay_s, chunk.step_dt_s)
        passed = (stamp_ns - chunk.stamp_ns) / (chunk.step_dt_s * 1e9)
        return delay is not None and passed + max(delay, 1) <= chunk.executed

    def _measure(self, now_ns: int, begun: _Begun, stamp_ns: int) -> None:
        """Measure the delay of a finished chunk. A further chunk of a frame does not count for delay_s."""
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
    """Whether the robot of a frame has the same step and number of action columns as in a chunk."""
    robot = prefix.embodiment
    return (chunk.step_dt_s, chunk.actions.shape[1]) == (robot.step_dt_s, robot.policy.joints)


def _behind(committed: np.ndarray | None, chunk: Chunk) -> Chunk:
    """The chunk as it is executed: its leading actions are replaced by the committed ones, [d, D].

    The chunk's own leading actions were guided to be the same, but small errors would be copied from chunk to
    chunk and grow where chunks overlap (one begun before the last arrived).
    """
    if committed is None:
        return chunk
    actions = np.concatenate([committed, chunk.actions[len(committed) :]])
    return replace(chunk, actions=actions)
