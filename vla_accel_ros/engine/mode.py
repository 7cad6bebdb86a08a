"""How frames share forwards: sequentially, pipelined, by speculation, or whichever of these serves best.

A frame needs K tokens: a prefill, which says the first, and K - 1 more, each a forward if nothing is shared.
Let p be the seconds of a prefill, p + s with a draft of K - 1 rows behind it, q with K - 1 riders, d those of
a decode, and A how many tokens of a draft are right on the mean. From the start of a frame to its last token,
and from one frame to the next, it takes

    sequential                 age  p + (K - 1) d           every  p + (K - 1) d
    pipelined                  age  (K - 1) max(q, T) + q   every  q
    speculative, for rate      age  (K - 1 - A) max(q + s, T) + q + s   every  q + s, the rest riding
    speculative, for freshness age  p + s + (K - 1 - A) d   every  the same, the rest decoded at once

where T is the camera's period: no frame comes sooner, and riders wait for the next. So a rate above the
camera's is worth nothing, and A = K - 1 makes speculation best in both respects. A is known in every mode,
because whether a draft would have been right can be seen when the frame is finished without one, too.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from vla_accel_ros.engine.token_pipeline import Finished, TokenPipeline

SCHEDULES = ("sequential", "pipelined", "speculative")
MODES = (*SCHEDULES, "auto")
PREFERENCES = ("rate", "freshness")

ALIKE = 0.05
"""Two modes are alike in what is preferred if they differ by less; the other respect decides then."""

MEMORY = 0.1
"""Weight of a newly finished frame in the mean of accepted tokens."""


@dataclass(frozen=True)
class Times:
    """Measured seconds of a forward: a prefill alone, one with a draft of K - 1 behind it, one with K - 1
    riders, and a decode alone."""

    prefill_s: float
    drafted_s: float
    packed_s: float
    decode_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; a forward takes a positive number of seconds.")


def measure(pipeline: TokenPipeline, prompt: Tensor, clock: Callable[[], float], repeats: int = 5) -> Times:
    """The medians of an empty pipeline's forwards for prompts like this one [1, T, W], when they are warm."""
    rest = pipeline.tokens - 1
    frames = itertools.count()

    def taken(riders: int, new: bool, draft: tuple[int, ...] = ()) -> float:
        seconds = []
        for _ in range(2 + repeats):
            for _ in range(riders):
                pipeline.step(next(frames), prompt)
            begin = clock()
            if new:
                pipeline.step(next(frames), prompt, draft)
            else:
                pipeline.step()
            seconds.append(clock() - begin)
            for frame in pipeline.in_flight:
                pipeline.drop(frame)
        return statistics.median(seconds[2:])

    prefill = taken(0, new=True)
    if not rest:
        return Times(prefill, prefill, prefill, prefill)
    return Times(prefill, taken(0, True, (0,) * rest), taken(rest, True), taken(1, False))


class Expected(NamedTuple):
    """rate_hz: finished frames a second; age_s: of a frame when its last token is said."""

    rate_hz: float
    age_s: float


def expected(
    schedule: str, times: Times, tokens: int, accepted: float, prefer: str, camera_hz: float = float("inf")
) -> Expected:
    """What a schedule of SCHEDULES gives with K = tokens and a mean of accepted draft tokens, 0 to K - 1."""
    rest, draft_s = tokens - 1, max(0.0, times.drafted_s - times.prefill_s)
    if schedule == "sequential":
        age = every = times.prefill_s + rest * times.decode_s
    elif schedule == "speculative" and prefer == "freshness":
        age = every = times.drafted_s + (rest - accepted) * times.decode_s
    else:
        drafted = schedule == "speculative"
        every = times.packed_s + draft_s * drafted
        waits = rest - accepted * drafted
        age = waits * max(every, 1.0 / camera_hz) + every
    return Expected(min(camera_hz, 1.0 / every), age)


def best(
    times: Times, tokens: int, accepted: float, prefer: str, camera_hz: float = float("inf"), now: str = ""
) -> str:
    """The schedule for what is preferred: of those alike in it, the best in the other respect.

    now: the one in use, which is kept while it is alike in both.
    """
    found = {one: expected(one, times, tokens, accepted, prefer, camera_hz) for one in SCHEDULES}
    first, second = ("rate", "age") if prefer == "rate" else ("age", "rate")
    costs = {one: {"rate": 1.0 / made.rate_hz, "age": made.age_s} for one, made in found.items()}
    alike = _cheapest(list(SCHEDULES), {one: cost[first] for one, cost in costs.items()})
    left = _cheapest(alike, {one: cost[second] for one, cost in costs.items()})
    return now if now in left else min(left, key=lambda one: costs[one][second])


def _cheapest(names: list[str], cost: dict[str, float]) -> list[str]:
    least = min(cost[name] for name in names)
    return [name for name in names if cost[name] <= (1.0 + ALIKE) * least]


class Mode:
    """The schedule of frames, fixed or chosen anew before each. Not for several threads at once.

    mode: of MODES. prefer: of PREFERENCES. tokens: K. times: of this machine, may be replaced as they are
    measured; needed for auto alone. camera_hz: how often frames come. Until frames were seen no draft is
    expected to be right. Raises ValueError for names and numbers that cannot be.
    """

    def __init__(
        self,
        mode: str,
        prefer: str,
        tokens: int,
        times: Times | None = None,
        camera_hz: float = float("inf"),
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is '{mode}'; use one of {MODES}.")
        if prefer not in PREFERENCES:
            raise ValueError(f"prefer is '{prefer}'; use one of {PREFERENCES}.")
        if tokens < 1 or not camera_hz > 0:
            raise ValueError(f"tokens is {tokens} and camera_hz {camera_hz}; both must be positive.")
        if mode == "auto" and times is None:
            raise ValueError("mode is 'auto' but there are no times; measure the four forwards first.")
        self.mode, self.prefer, self.times = mode, prefer, times
        self._tokens, self._camera_hz = tokens, camera_hz
        self.accepted = 0.0
        self._seen = 0
        self._schedule = "" if mode == "auto" else mode

    def schedule(self) -> str:
        """Of SCHEDULES, for the next frame."""
        if self.mode == "auto":
            assert self.times is not None
            self._schedule = best(
                self.times, self._tokens, self.accepted, self.prefer, self._camera_hz, self._schedule
            )
        return self._schedule

    def overlaps(self, schedule: str) -> bool:
        """Whether what a frame still has to say rides with the frames after it."""
        return schedule == "pipelined" or (schedule == "speculative" and self.prefer == "rate")

    def note(self, tokens: Sequence[int], draft: Sequence[int]) -> None:
        """A frame is finished, for which this was the draft, or would have been; () = there was none."""
        if not draft:
            return
        right = 0
        while right < min(len(draft), self._tokens - 1) and tokens[right] == draft[right]:
            right += 1
        self._seen += 1
        self.accepted += (right - self.accepted) * max(MEMORY, 1.0 / self._seen)


class Frames:
    """Frames through a pipeline, by the schedule that a mode gives for each. Not for several threads at once.

    The draft of a frame is what the last finished frame said.
    """

    def __init__(self, pipeline: TokenPipeline, mode: Mode) -> None:
        self._pipeline, self._mode = pipeline, mode
        self._last: tuple[int, ...] = ()
        self._drafts: dict[int, tuple[int, ...]] = {}

    def take(self, frame: int, embeddings: Tensor) -> list[Finished]:
        """A new frame, as TokenPipeline.step takes it; returns what is finished, oldest first.

        Where frames do not overlap that is this one, and those that were in flight from before.
        """
        schedule = self._mode.schedule()
        draft = self._last if schedule == "speculative" else ()
        finished = self._pipeline.step(frame, embeddings, draft)
        self._drafts[frame] = self._last
        if not self._mode.overlaps(schedule):
            finished += self._pipeline.drain()
        return self._noted(finished)

    def drain(self) -> list[Finished]:
        """Finish what is in flight, without a new frame."""
        return self._noted(self._pipeline.drain())

    def clear(self) -> None:
        """Forget what is in flight and what was said, as when the instruction has changed."""
        self._pipeline.clear()
        self._drafts.clear()
        self._last = ()

    def _noted(self, finished: list[Finished]) -> list[Finished]:
        for one in finished:
            self._mode.note(one.tokens, self._drafts.pop(one.frame))
            self._last = one.tokens
        return finished
