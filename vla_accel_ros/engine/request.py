"""A request to the engine, and the micro-batch that one launch computes.

A request is a chain of micro-requests, which the family declares (models.micro_requests). `stage` is the next
one, so a request can pause between any two and go on later. A micro-batch is one stage of one or more
requests; what follows in a frame and is kept as long may be computed with it.

What is wanted is a wish, which is frozen: `Observe`, `Act` or `Ask`. When the request begins, its
wish is replaced once by one that has the newest observation or joints. Everything else that changes is in
the request, and is set in the loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from vla_accel_ros.models.micro_requests import DECODE, DENOISE, ENCODE, PREFILL
from vla_accel_ros.timeline import Flows, flow
from vla_accel_ros.types import Agreement, Chunk, Observation

if TYPE_CHECKING:  # rules plan with requests where there is no torch
    from vla_accel_ros.engine.config import Split
    from vla_accel_ros.engine.grid import Grid
    from vla_accel_ros.engine.kv.prefixes import Prefix
    from vla_accel_ros.models.flow.rtc import Guidance
    from vla_accel_ros.models.text.decoding import Sampling

OBSERVE, ACT, ASK = "observe", "act", "ask"
__all__ = ["DECODE", "DENOISE", "ENCODE", "PREFILL"]
_LOG = logging.getLogger(__name__)
WHOLE = "whole"
"""Kind of action requests that are denoised whole while others are in seats; see `Request.kind`."""


class Cancelled(RuntimeError):
    """A request was cancelled before it was finished."""


class Status(Enum):
    """WAITING: it has not begun. RUNNING: its next micro-request may be launched. LAUNCHED: all of it, or its
    next token, is launched, and the result is pending. FINISHED: nothing more is computed. CANCELLED: before
    it was finished."""

    WAITING = "waiting"
    RUNNING = "running"
    LAUNCHED = "launched"
    FINISHED = "finished"
    CANCELLED = "cancelled"


WAITING, RUNNING, LAUNCHED, FINISHED, CANCELLED = Status  # by name: Status.WAITING takes four times as long


class Waits(Enum):
    """What a request waits for before it begins. NOTHING: it fails if there is no room (a slot, a seat, a
    place for an answer). ROOM. NEWS: room and something new to act on, as in a stream of frames, where a
    request may also ride in the forwards of later frames."""

    NOTHING = "nothing"
    ROOM = "room"
    NEWS = "news"


NEWS = Waits.NEWS


@dataclass(frozen=True)
class Pace:
    """How often something is done and how long it may take; deadline_s 0 means one period."""

    rate_hz: float
    deadline_s: float = 0.0

    @cached_property
    def period_s(self) -> float:
        """Seconds from one run to the next."""
        return 1.0 / self.rate_hz

    @cached_property
    def most_s(self) -> float:
        """Seconds after which a run is a miss."""
        return self.deadline_s or self.period_s


UNPACED = Pace(math.inf, math.inf)
"""Of what has no known period and no deadline."""


@dataclass(frozen=True, eq=False)
class Observe:
    """Compute the prefix of an observation. newest: returns the observation when the request begins, or None
    if there is none that is new, which ends the request without a result."""

    want: ClassVar[str] = OBSERVE
    stage: ClassVar[str] = ENCODE
    observation: Observation | None = None
    newest: Callable[[], Observation | None] | None = None


@dataclass(frozen=True, eq=False)
class Act:
    """Make a chunk of actions.

    state float [D]: the newest joints, for a policy with a state token, of time sensed_ns. sense: returns
    both when the request begins, or None. noise float [H, A], steps, guidance, committed: see Engine.act.
    agreement: what the chunk is made to agree with, recorded in it. step_states float [S, D]: the joints for
    each step of a staggered chunk, as recorded in Chunk.step_states; None: the newest if
    EngineConfig.joints_each_step is set.
    on_begin: called with the request before its first micro-batch, when its prefix and state are known.

    Of a stream: first: True: only the first chunk of a frame, denoised whole; False: only further chunks;
    None: either. grid: when to act on the same frame again; None: at any time. commits: for a frame's
    stamp_ns, the number of leading actions of its chunk that are committed by now, None while chunks are not
    guided; more committed actions are something new to act on.
    """

    want: ClassVar[str] = ACT
    stage: ClassVar[str] = DENOISE
    state: np.ndarray | None = None
    sensed_ns: int = 0
    sense: Callable[[], tuple[np.ndarray, int] | None] | None = None
    noise: Any = None
    steps: int | None = None
    guidance: Guidance | None = None
    committed: np.ndarray | None = None
    agreement: Agreement | None = None
    step_states: np.ndarray | None = None
    on_begin: Callable[[Request], None] | None = None
    first: bool | None = None
    grid: Grid | None = None
    commits: Callable[[int], int | None] | None = None

    @cached_property
    def whole(self) -> bool:
        """Whether it cannot share denoising steps with others."""
        return self.exact or self.steps is not None or self.first is True

    @property
    def exact(self) -> bool:
        """Whether it needs the network's derivative, which captured steps do not have."""
        return self.guidance is not None and self.guidance.jacobian != "identity"


@dataclass(frozen=True, eq=False)
class Ask:
    """Let the language head continue a prefix; see Engine.ask. question: other words than the prefix's; None:
    its own."""

    want: ClassVar[str] = ASK
    stage: ClassVar[str] = PREFILL
    question: str | None = None
    max_tokens: int = 16
    sampling: Sampling | None = None
    seed: int | None = None
    stop: Sequence[str] = ()


Wish = Observe | Act | Ask


@dataclass(eq=False)
class Request:
    """A caller's request, from submission to result. The caller sets the fields up to on_progress; the engine
    sets the others, in the loop.

    robot: whose frames it is about. prefix: what it reads; None: the robot's newest when it begins.
    priority: higher goes first. pace: its usual period, and its deadline: a frame is late if finished later
    than that after its submission, an action after its beginning.
    on_progress: called in the loop after each micro-batch that advanced the request, including the last, and
        once when it is cancelled. It may submit and cancel, but not wait.

    stage: the next one. kind: which part of the runner computes it: OBSERVE, ACT, WHOLE or ASK; two
    micro-batches of one kind never run at once. number: in order of beginning. instruction: the frame's.
    fresh: nobody acted on the frame before. partial: only some groups of layers of its next token are
    launched. tokens: ids so far. result: a Prefix, a Chunk, or the text so far. progress: of who computes it.
    """

    wish: Wish
    robot: str = ""
    prefix: Prefix | None = None
    priority: int = 0
    waits: Waits = Waits.NOTHING
    pace: Pace = UNPACED
    on_progress: Callable[[Request], None] | None = None

    status: Status = field(default=WAITING, init=False)
    stage: str = field(default="", init=False)
    kind: str = field(default="", init=False)
    number: int = field(default=-1, init=False)
    instruction: str = field(default="", init=False)
    fresh: bool = field(default=False, init=False)
    partial: bool = field(default=False, init=False)
    submitted_s: float = field(default=0.0, init=False)
    begun_s: float = field(default=0.0, init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    result: Prefix | Chunk | str | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    progress: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.stage, self.kind = self.wish.stage, self.want

    @cached_property
    def want(self) -> str:
        """OBSERVE, ACT or ASK. Rules ask hundreds of times a micro-batch."""
        return self.wish.want

    @property
    def act(self) -> Act:
        """The wish of an action request."""
        return self.wish  # type: ignore[return-value]

    @property
    def ask(self) -> Ask:
        """The wish of a question."""
        return self.wish  # type: ignore[return-value]

    @property
    def observation(self) -> Observation | None:
        """What a frame's request observes, None if that is not known yet; of other requests None."""
        return cast(Observe, self.wish).observation if self.want == OBSERVE else None

    @property
    def frame(self) -> Prefix:
        """The prefix that it reads, held since it began."""
        assert self.prefix is not None
        return self.prefix

    @property
    def stream(self) -> bool:
        """Whether it belongs to a stream of frames."""
        return self.waits is NEWS

    @property
    def whole(self) -> bool:
        """Whether it is an action that cannot share denoising steps with others."""
        return self.want == ACT and self.act.whole

    @property
    def begun(self) -> bool:
        """Whether it is no longer waiting."""
        return self.status is not WAITING

    @property
    def launched(self) -> bool:
        """Whether its result is pending."""
        return self.status is LAUNCHED

    @property
    def finished(self) -> bool:
        """Whether nothing more is computed, also because it was cancelled."""
        return self.status is FINISHED or self.status is CANCELLED

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled before it was finished."""
        return self.status is CANCELLED

    def finish(self, result: Prefix | Chunk | str | None) -> None:
        """End it with a result."""
        self.result, self.status = result, FINISHED

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self.error, self.status = error, FINISHED

    def report(self) -> None:
        """Call on_progress; log its exception, so that others are still called."""
        try:
            if self.on_progress is not None:
                self.on_progress(self)
        except Exception:
            _LOG.exception("what a request to %s came to could not be told", self.want)


Requests = Sequence[Request]


def by_priority(requests: Requests) -> list[Request]:
    """The highest priority first; equal priorities in order of submission."""
    if len(requests) < 2:
        return [*requests]
    return sorted(requests, key=lambda request: -request.priority)


@dataclass(frozen=True)
class MicroBatch:
    """The work of one launch: a stage of some requests.

    steps: number of denoising steps or tokens; 0 = to the end. draft: ids that may be the next tokens of the
    request whose stage is PREFILL. split: of the multiprocessors while it runs, None = the lane's.
    """

    stage: str
    requests: tuple[Request, ...]
    steps: int = 1
    draft: tuple[int, ...] = ()
    split: Split | None = None

    @cached_property
    def kind(self) -> str:
        """Name under which its duration is recorded: "act.denoise"."""
        return f"{self.requests[-1].kind}.{self.stage}"

    @cached_property
    def flows(self) -> Flows:
        """Once all have begun: the flows of the requests' frames, and of all images of a frame that is
        observed."""
        frames: dict[tuple[int, str], None] = {}  # most chunks of a step are of one
        for request in self.requests:
            if request.want != OBSERVE:
                if request.prefix is not None:
                    frames[request.prefix.stamp_ns, request.robot] = None
            elif (observation := request.observation) is not None:
                for stamp_ns in (observation.stamp_ns, *observation.stamps_ns.values()):
                    frames[stamp_ns, request.robot] = None
        return tuple(dict.fromkeys(flow(*frame) for frame in frames))


@contextmanager
def failing_alone(request: Request) -> Iterator[None]:
    """An exception in the block ends this request with that error; the others of its micro-batch go on."""
    try:
        yield
    except Exception as error:
        request.fail(error)
