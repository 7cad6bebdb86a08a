"""The engine's front door: observe a frame, act on it, ask about it.

Everything is a request in one scheduler's queue: `observe`, `act` and `ask` submit one and return what came
of it; `scheduler` takes requests of streams that nobody waits for (engine.streaming). A Prefix is a held
reference: what is being read cannot be overwritten, and what is released is reused. All keys and values are
allocated in the constructor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

import numpy as np
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, Request
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.runner import ModelRunner
from vla_accel_ros.engine.scheduler import Scheduler
from vla_accel_ros.engine.stages.stages import Progress
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.text.decoding import Sampling
from vla_accel_ros.types import Agreement, Chunk, Observation


class Engine:
    """A policy that runs, of any family (models.policies). Safe to use from several threads.

    config: how; options are fields of it given by name: Engine(policy, steps=5).
    robots: statistics and step time of each robot that has its own, by the name in its observations; more are
        added while it runs by `runner.robots.add`. Without any, all names are served by `policy`.

    Attributes: `policy`, `config`, `runner` (what computes, and for whom) and `scheduler`.
    Raises ValueError for options that cannot be, or that the policy does not have.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        config: EngineConfig | None = None,
        *,
        robots: Mapping[str, Embodiment] | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise ValueError("the engine was given a config and options; give one of them.")
        self.policy, self.config = policy, config or EngineConfig(**options)
        self.runner = ModelRunner(policy, self.config, robots)
        profile = Profile()
        lanes, chosen = self.runner.lanes, self.runner.scheduling(profile)
        self.scheduler = Scheduler(self.runner, chosen, profile, lanes=lanes)

    def prepare(
        self,
        views: Iterable[int],
        prompts: Iterable[int],
        progress: Progress = lambda name, done, total: None,
    ) -> None:
        """Make and capture the fast stages ahead, so that no frame waits for them. Does nothing without them.

        views: numbers of cameras; prompts: numbers of tokens, at most the policy's, and of one that acts by
        tokens the forwards that its frames share are made for these; progress: see Stages.build.
        Raises PoolExhausted if every slot is held.
        """
        self.runner.prepare(views, prompts, progress)

    def observe(self, observation: Observation) -> Prefix:
        """Compute the prefix of an observation and publish it as its robot's newest; the caller releases it.

        Raises ValueError for an observation the policy cannot take, or a robot that is not known;
        PoolExhausted if every slot is held; Torn if its images were overwritten before their pixels were
        here.
        """
        return cast(Prefix, self._result(Request(OBSERVE, observation.robot, observation)))

    def act(
        self,
        prefix: Prefix,
        state: np.ndarray | None = None,
        noise: np.ndarray | Tensor | int | None = None,
        *,
        steps: int | None = None,
        guidance: Guidance | None = None,
        committed: np.ndarray | None = None,
        agreement: Agreement | None = None,
        step_states: np.ndarray | None = None,
    ) -> Chunk:
        """A chunk of motion from a prefix: sampled, or the likeliest action of a policy that acts by tokens.

        state: float [D], the newest joint state, for a policy that can be given one (policy.takes_state; None
        = the observation's); the others have their state in the prefix and ignore this. Relative actions are
        relative to the state the network was given.
        noise: float [H, A] instead of the request's own, or the number of the request whose noise it is.
        steps: instead of the engine's.
        guidance: agreement with the previous chunk, see models.flow.rtc and engine.actors.guidance.
        committed: float [d, D], absolute, instead of guidance: the leading actions, which the robot executes
            meanwhile. The chunk begins with exactly them and continues them. Only for policies that were
            trained to be given that many (policy.trained_delay, see models.flow.committed).
        step_states: float [S, D], the joints for each step of a staggered chunk, as a chunk of an engine with
            joints_each_step recorded them.
        agreement: either of them as it was recorded in a chunk; the new one records it, too.
        Raises ValueError for what does not fit the policy, or for both guidance and committed; a policy that
        acts by tokens takes none of noise, steps, guidance and committed.
        """
        request = Request(ACT, prefix.robot, prefix=prefix, state=state, noise=noise, steps=steps)
        request.guidance, request.committed, request.agreement = guidance, committed, agreement
        request.step_states = step_states
        return cast(Chunk, self._result(request))

    def ask(
        self,
        prefix: Prefix,
        question: str | None = None,
        *,
        max_tokens: int = 16,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Answer:
        """Let the language head continue a prefix: an iterator of text, computed when read.

        question: the same frame with other words; its cameras are not encoded again, engine.frames
        says what else is used again. None: the prefix's own prompt.
        The answer holds the prefix and a place for its own keys and values until it ends or is closed: newer
        frames do not disturb it, nor it them or an action. It ends at the end of the text, at a text that is
        in `stop` (which is not part of it), or at max_tokens. All open answers share their forwards.
        temperature, top_k, top_p: see models.text.decoding.Sampling; 0 is greedy. seed: of the draws, instead
        of the request's own.
        Raises ValueError for what cannot be or a policy that has no language head, PoolExhausted if too many
        are open.
        """
        request = Request(
            ASK, prefix.robot, prefix=prefix, question=question, max_tokens=max_tokens, seed=seed
        )
        request.sampling, request.stop = Sampling(temperature, top_k, top_p), tuple(stop)
        answer = Answer(self.scheduler, self.scheduler.submit(request))
        self.scheduler.wait(request, lambda one: one.begun and one.done > 0)
        return answer

    def _result(self, request: Request) -> object:
        try:
            return self.scheduler.wait(self.scheduler.submit(request)).result
        except BaseException:  # also of who was interrupted: nobody else gives back what it holds
            self.scheduler.cancel(request)
            raise


class Answer(Iterator[str]):
    """Pieces of text, whose concatenation is the answer; computed when read, unless they were before.

    Ends at the end-of-sequence token, at a text of `stop`, or at its most tokens. Gives back what it holds
    when it ends, is closed, leaves a `with` block or is no longer referred to. One thread reads it.
    """

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        assert request.want == ASK
        self._scheduler, self._request = scheduler, request

    @property
    def request(self) -> int:
        """Its number."""
        return self._request.number

    @property
    def tokens(self) -> list[int]:
        """Ids generated so far, without the one that ends the text."""
        return self._request.tokens

    @property
    def ended(self) -> bool:
        """Whether nothing comes beyond what `take` gives."""
        return self._request.finished

    def take(self) -> str:
        """The text that was not read yet; computes nothing."""
        pieces: deque[str] = self._request.pieces
        return "".join(pieces.popleft() for _ in range(len(pieces)))

    def __next__(self) -> str:
        request = self._request
        if not request.pieces and not request.cancelled:
            with suppress(Cancelled):  # by another thread
                self._scheduler.wait(request, lambda one: bool(one.pieces))
        if not request.pieces:
            raise StopIteration
        return request.pieces.popleft()

    def close(self) -> None:
        """Stop writing and give back the prefix and the place for keys and values."""
        self._request.pieces.clear()
        if not self._request.finished:
            self._scheduler.cancel(self._request)

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
