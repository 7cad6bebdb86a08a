"""The engine's public interface: observe a frame, act on it, ask about it.

Everything is a request in one scheduler's queue: `observe`, `act` and `ask` submit one and return its result.
`scheduler` also takes requests of streams that nobody waits for (engine.streaming). A Prefix is a counted
reference: its memory cannot be overwritten while it is held, and is reused after its release. The constructor
allocates all keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

import numpy as np
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.goals import for_policy
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import DECODE, Act, Ask, Cancelled, Observe, Request
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.runner.runner import ModelRunner
from vla_accel_ros.engine.scheduler import Scheduler
from vla_accel_ros.engine.stages.stage import capture_ahead
from vla_accel_ros.engine.stages.stages import Progress
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.text.decoding import Sampling
from vla_accel_ros.types import Agreement, Chunk, Observation


class Engine:
    """Runs a policy of any family (models.policies). Safe to use from several threads.

    config: the options; or give its fields by name: Engine(policy, steps=5).
    robots: statistics and step time of each robot that has its own, by the name in its observations;
        `runner.robots.add` adds more while the engine runs. Without any, `policy` serves all names.

    Attributes: `policy`, `config`, `runner` (computes micro-batches) and `scheduler`.
    Raises ValueError for invalid options, and for options that the policy does not have.
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
        self.policy, self.config = policy, for_policy(policy, config or EngineConfig(**options))
        self.runner = ModelRunner(policy, self.config, robots)
        self.scheduler = Scheduler(self.runner, self.runner.rules(), lanes=self.runner.lanes)

    def prepare(
        self,
        views: Iterable[int],
        prompts: Iterable[int],
        progress: Progress = lambda name, done, total: None,
    ) -> None:
        """Build and capture the fast stages now, so that no frame waits for that later. Does nothing without
        fast stages.

        views: numbers of cameras; prompts: numbers of tokens, at most the policy's maximum (for a policy that
        acts by tokens, its shared forwards are also built for these); progress: see Stages.build. Raises
        PoolExhausted if every slot is held.
        """
        with capture_ahead():
            self.runner.prepare(views, prompts, progress)

    def observe(self, observation: Observation) -> Prefix:
        """Compute the prefix of an observation and publish it as its robot's newest; the caller releases it.

        Raises ValueError for an observation that the policy cannot take, or an unknown robot; PoolExhausted
        if every slot is held; Torn if the images were overwritten before their pixels were copied.
        """
        return cast(Prefix, self._result(Request(Observe(observation), observation.robot)))

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
        """Returns a chunk of actions from a prefix: sampled, or the likeliest action of a policy that acts by
        tokens.

        state: float [D], the newest joint state, for a policy that takes one (None = the observation's); the
            other policies have their state in the prefix and ignore this. Relative actions are relative to
            the state that the network got.
        noise: float [H, A] instead of the request's own, or the number of the request whose noise to use.
        steps: instead of the engine's.
        guidance: agreement with the previous chunk, in raw actions; see models.flow.rtc.
        committed: float [d, D], absolute, instead of guidance: the leading actions, which the robot executes
            meanwhile. The chunk begins with exactly these and continues them. Only for policies that were
            trained with that many (policy.trained_delay, see models.flow.committed).
        step_states: float [S, D], the joints for each step of a staggered chunk, as an engine with
            joints_each_step recorded them in a chunk.
        agreement: guidance or committed actions in the robot's units, as recorded in a chunk; the new chunk
            records them, too.

        Raises ValueError for an argument that does not fit the policy, for both guidance and committed, and
        for noise, steps, guidance or committed with a policy that acts by tokens.
        """
        wish = Act(
            state=state,
            noise=noise,
            steps=steps,
            guidance=guidance,
            committed=committed,
            agreement=agreement,
            step_states=step_states,
        )
        return cast(Chunk, self._result(Request(wish, prefix.robot, prefix)))

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
        """Let the language head continue a prefix; returns an iterator of text, computed when read.

        question: another prompt for the same frame, whose images are not encoded again (engine.runner.frames
            says what else is reused); None: the prefix's own prompt.
        temperature, top_k, top_p: see models.text.decoding.Sampling; 0 is greedy. seed: of the draws, instead
            of the request's own.

        The answer holds the prefix and room for its own keys and values until it ends or is closed. Newer
        frames, actions and answers do not change each other's results. It ends at the end of the text, at a
        text in `stop` (which it excludes), or at max_tokens. All open answers share their forwards.
        Raises ValueError for an invalid argument or a policy without a language head, PoolExhausted if too
        many answers are open.
        """
        wish = Ask(question, max_tokens, Sampling(temperature, top_k, top_p), seed, stop)
        request = Request(wish, prefix.robot, prefix)
        answer = Answer(self.scheduler, self.scheduler.submit(request))
        self.scheduler.wait(request, lambda request: request.stage == DECODE)
        return answer

    def _result(self, request: Request) -> object:
        try:
            return self.scheduler.wait(self.scheduler.submit(request)).result
        except BaseException:  # also KeyboardInterrupt: nobody else frees what it holds
            self.scheduler.cancel(request)
            if isinstance(request.result, Prefix):  # it was finished already
                request.result.release()
            raise


class Answer(Iterator[str]):
    """Pieces of text whose concatenation is the answer; computed when read, unless they are there already: a
    piece is all that was not read yet.

    It ends at the end-of-sequence token, at a text of `stop`, or at max_tokens. It frees what it holds when
    it ends, is closed, leaves a `with` block or is garbage-collected. Read it from one thread.
    """

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self._scheduler, self._request = scheduler, request
        self._length = 0  # of the text that was read
        self._closed = False

    @property
    def request(self) -> int:
        """The request's number."""
        return self._request.number

    @property
    def tokens(self) -> list[int]:
        """Token ids generated so far, without the end-of-sequence token."""
        return self._request.tokens

    @property
    def ended(self) -> bool:
        """Whether nothing comes after what `take` returns."""
        return self._request.finished

    def take(self) -> str:
        """Returns the text that was not read yet; computes nothing."""
        text = self._unread
        self._length += len(text)
        return text

    def __next__(self) -> str:
        if not self._unread:
            with suppress(Cancelled):  # by another thread
                self._scheduler.wait(self._request, lambda _: bool(self._unread))
        if not self._unread:
            raise StopIteration
        return self.take()

    @property
    def _unread(self) -> str:
        return "" if self._closed else cast(str, self._request.result or "")[self._length :]

    def close(self) -> None:
        """Stop writing and free the prefix and the keys and values."""
        self._closed = True
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
