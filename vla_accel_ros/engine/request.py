"""A request to the engine, and the micro-batch that one launch computes.

A request is a chain of micro-requests, which the family declares (models.micro_requests). `stage` is the next
one, so a request can pause between any two and go on later. A micro-batch is one stage of one or more
requests; what follows in a frame and is kept as long may be computed with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_accel_ros.models.micro_requests import DECODE, DENOISE, ENCODE, PREFILL
from vla_accel_ros.timeline import Flows, flow
from vla_accel_ros.types import Agreement, Chunk, Observation

if TYPE_CHECKING:  # rules plan with requests where there is no torch
    from vla_accel_ros.engine.config import Split
    from vla_accel_ros.engine.kv.pool import Prefix
    from vla_accel_ros.models.flow.rtc import Guidance
    from vla_accel_ros.models.text.decoding import Sampling

OBSERVE, ACT, ASK, REWORD = "observe", "act", "ask", "reword"
__all__ = ["DECODE", "DENOISE", "ENCODE", "PREFILL"]
WHOLE = "whole"
"""Kind of action requests that are denoised whole while others are in seats; see `Request.kind`."""
_FIRST_STAGE = {OBSERVE: ENCODE, REWORD: PREFILL, ASK: PREFILL, ACT: DENOISE}


class Cancelled(RuntimeError):
    """A request was cancelled before it was finished."""


@dataclass(eq=False)
class Request:
    """A caller's request, from submission to result. The caller sets the fields up to on_progress; the engine
    sets the others, in the loop.

    want: OBSERVE, ACT, ASK or REWORD. robot: whose frames it is about. task: of a fleet's robot, what is
        known of it (fleet.task.Task).
    observation: of OBSERVE; observe: returns it when the request begins, so that it is the newest then, or
        None if there is none that is new, which ends the request without a result.
    prefix: what the other requests read; None: the robot's newest when they begin.
    priority: higher goes first. not_before_s: do not act on the same frame again before this time.
    within_s: deadline: a frame is late if finished later than this after its submission, an action after its
        beginning. period_s: shortest period of such requests; 0 = unknown.
    stream: it belongs to a stream of frames: it waits until there is something new to act on, and may ride in
        the forwards of later frames. False: it is finished as soon as possible.
    waits: whether it waits for room (a slot, a seat, a place for an answer) or fails without it. A waiting
        frame is observed later and its images are older, so robots' frames do not wait.

    first: of a stream of actions: True: only the first chunk of a frame, denoised whole; False: only further
    chunks; None: either.

    Of ACT:
    state float [D]: the newest joints, for a policy with a state token. sense: returns them when the request
        begins, (state, stamp_ns) or None. noise float [H, A], steps, guidance, committed: see Engine.act.
    step_states float [S, D]: the joints for each step of a staggered chunk, as recorded in Chunk.step_states;
        None: the newest if EngineConfig.joints_each_step is set.
    commits: of a guided stream: for a frame's stamp_ns, the number of leading actions of its chunk that are
        committed by now, None while chunks are not guided; more committed actions are something new to act
        on.
    agreement: what the chunk is made to agree with, recorded in it. on_begin: called with the request before
        its first micro-batch, when its prefix and state are known.

    Of ASK and REWORD:
    question: other words than the prefix's; None: its own. max_tokens, sampling, seed, stop: see Engine.ask.
    on_progress: called in the loop after each micro-batch that advanced the request, including the last, and
        once when it is cancelled. It may submit and cancel, but not wait.

    Set by the engine:
    stage: the next one. kind: which part of the runner computes it: OBSERVE, ACT, WHOLE or ASK (also for
        REWORD); two micro-batches of one kind never run at once. number: in order of beginning. instruction:
        the frame's. fresh: nobody acted on the frame before. awaited: all of it, or its next token, is
        launched, and the result is pending. finished: nothing more is computed. cancelled: before it was
        finished; its result is None. released: nothing but the result is held for it. done: micro-batches so
        far. partial: only some groups of layers of its next token are launched. tokens: ids so far. pieces:
        unread text. result: a Prefix, a Chunk, or the whole text.
    """

    want: str
    robot: str = ""
    observation: Observation | None = None
    observe: Callable[[], Observation | None] | None = None
    prefix: Prefix | None = None
    task: Any = None
    priority: int = 0
    not_before_s: float = -math.inf
    within_s: float = math.inf
    period_s: float = 0.0
    stream: bool = False
    waits: bool = False
    first: bool | None = None
    state: np.ndarray | None = None
    sense: Callable[[], tuple[np.ndarray, int] | None] | None = None
    step_states: np.ndarray | None = None
    commits: Callable[[int], int | None] | None = None
    noise: Any = None
    steps: int | None = None
    guidance: Guidance | None = None
    committed: np.ndarray | None = None
    agreement: Agreement | None = None
    on_begin: Callable[[Request], None] | None = None
    question: str | None = None
    max_tokens: int = 16
    sampling: Sampling | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    on_progress: Callable[[Request], None] | None = None

    stage: str = field(default="", init=False)
    kind: str = field(default="", init=False)
    number: int = field(default=-1, init=False)
    instruction: str = field(default="", init=False)
    fresh: bool = field(default=False, init=False)
    begun: bool = field(default=False, init=False)
    awaited: bool = field(default=False, init=False)
    finished: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    released: bool = field(default=False, init=False)
    submitted_s: float = field(default=0.0, init=False)
    begun_s: float = field(default=0.0, init=False)
    sensed_ns: int = field(default=0, init=False)
    done: int = field(default=0, init=False)
    tokens: list[int] = field(default_factory=list, init=False)
    pieces: deque[str] = field(default_factory=deque, init=False)
    result: Prefix | Chunk | str | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    partial: bool = field(default=False, init=False)
    progress: Any = field(default=None, init=False)  # of who computes it

    def __post_init__(self) -> None:
        if self.want not in _FIRST_STAGE:
            raise ValueError(f"want is '{self.want}'; use one of {tuple(_FIRST_STAGE)}.")
        self.stage, self.kind = _FIRST_STAGE[self.want], ASK if self.want == REWORD else self.want

    @property
    def frame(self) -> Prefix:
        """The prefix that it reads, held since it began."""
        assert self.prefix is not None
        return self.prefix

    @property
    def writing(self) -> bool:
        """Whether its next token has begun and is not there yet."""
        return self.partial or self.awaited

    @property
    def whole(self) -> bool:
        """Whether an action request cannot share denoising steps with others."""
        exact = self.guidance is not None and self.guidance.jacobian != "identity"
        return exact or self.steps is not None or self.first is True


def by_priority(requests: Sequence[Request]) -> list[Request]:
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
            elif (seen := request.observation) is not None:
                for stamp_ns in (seen.stamp_ns, *seen.stamps_ns.values()):
                    frames[stamp_ns, request.robot] = None
        return tuple(dict.fromkeys(flow(*frame) for frame in frames))


@contextmanager
def failing_alone(request: Request) -> Iterator[None]:
    """An exception in the block ends this request with that error; the others of its micro-batch go on."""
    try:
        yield
    except Exception as error:
        request.error, request.finished = error, True
