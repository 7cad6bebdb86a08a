"""The engine's front door: observe a frame, act on it, ask about it.

`observe` encodes the cameras and computes one prefix into a slot of the KV pool; any number of `act` and
`ask` calls then read that prefix, from other threads and at other rates. A Prefix is a held reference: what
is being read cannot be overwritten, and what is released is reused. All keys and values are allocated in the
constructor.

Everything runs in the calling thread, on the device's current stream. Threads may overlap freely: on a CPU
they run side by side, on a GPU their kernels are ordered by the stream they share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.acting import How, Seen, Settings, acting
from vla_accel_ros.engine.intake import Intake
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.stages import Progress, Stages
from vla_accel_ros.engine.text import Answer
from vla_accel_ros.engine.types import Chunk, Observation
from vla_accel_ros.models.decoding import Sampling
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.policies import FLOW, AnyPolicy
from vla_accel_ros.models.policy import PolicyInputs
from vla_accel_ros.models.rtc import Guidance


@dataclass(frozen=True)
class Prefix:
    """One frame's keys and values, held until released (or to the end of a `with` block).

    slot: where they are; version: grows with every frame; stamp_ns: capture time of the observation;
    n_tokens: image and prompt tokens; state: float32 [D], the observation's; instruction: the observation's.
    """

    slot: int
    version: int
    stamp_ns: int
    n_tokens: int
    state: np.ndarray
    instruction: str
    _engine: Engine = field(repr=False, compare=False)
    _released: list[bool] = field(default_factory=lambda: [False], repr=False, compare=False)

    def release(self) -> None:
        """Give the slot back. Doing so twice is harmless; reading afterwards is an error."""
        self._engine.release(self)

    def __enter__(self) -> Prefix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Engine:
    """A policy that runs, of any family (models.policies).

    slots: prefixes alive at once; four are the newest, one being computed, one acted on, one asked about.
    steps, time_rule: flow sampling, see models.sampling; None is the rule of whoever trained the policy.
    step_dt_s: time between two actions.
    seed: the noise of request r is a function of (seed, r) alone.
    answers, answer_tokens: most answers being written at once, and most tokens in one.
    fast: whether prefixes and chunks are computed by engine.stages, where the model is a pi0 or pi0.5. What
        needs more than a chunk (guidance, committed actions) is computed by the plain model.

    Raises ValueError for settings that cannot be, and for fast where there are no stages for the policy.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        slots: int = 4,
        steps: int = 10,
        time_rule: str | None = None,
        seed: int = 0,
        *,
        step_dt_s: float = 1 / 30,
        answers: int = 2,
        answer_tokens: int = 64,
        fast: bool = False,
    ) -> None:
        if not step_dt_s > 0:
            raise ValueError(f"step_dt_s is {step_dt_s}; give the time between two actions in seconds.")
        self.policy, self.steps, self.seed, self.step_dt_s = policy, steps, seed, step_dt_s
        self.time_rule = time_rule or policy.time_rule
        self._intake = Intake(policy)
        config, device, dtype = policy.config, policy.device, policy.kv_dtype
        self.pool = KVPool(config.prefix, slots, config.max_tokens, device, dtype)
        self._tails = KVPool(config.prefix, answers, answer_tokens, device, dtype)
        self._last_hidden = torch.zeros(slots, config.prefix.width, device=device, dtype=dtype)
        self._stages = None
        if fast:
            if not isinstance(policy.model, Pi):
                raise ValueError(
                    f"fast is true, but a {config.kind} policy has no fast stages; leave it false."
                )
            self._stages = Stages(policy.model, self.pool, self.time_rule)
        self._acting = acting(policy, Settings(steps, self.time_rule, seed), self._stages)
        self._frames: list[Prefix | None] = [None] * slots
        self._versions = itertools.count()
        self._action_requests = itertools.count()
        self._text_requests = itertools.count()

    def observe(self, observation: Observation) -> Prefix:
        """Compute the prefix of an observation and publish it as the newest; the caller releases it.

        Raises ValueError for an observation the policy cannot take, PoolExhausted if every slot is held, Torn
        if its images were overwritten before their pixels were here.
        """
        slot = self.pool.acquire()
        try:
            with torch.inference_mode():
                inputs = self._intake(observation)
                n_tokens = self._compute(inputs, slot)
            state = np.array(observation.state, np.float32)
            version = next(self._versions)
            prefix = Prefix(
                slot, version, observation.stamp_ns, n_tokens, state, observation.instruction, self
            )
            self._frames[slot] = prefix
            self.pool.publish(slot, version)
            return prefix
        except BaseException:
            self.pool.release(slot)
            raise

    def _compute(self, inputs: PolicyInputs, slot: int) -> int:
        """The prefix, into its slot; returns its tokens."""
        if self._stages is not None:
            return self._stages.observe([inputs.images], [inputs.tokens], [slot])[0]
        embeddings = self.policy.embed(inputs)
        n_tokens = embeddings.shape[1]
        hidden, _ = self.policy.model.prefix(embeddings, out=self.pool.view(slot, n_tokens))
        self._last_hidden[slot].copy_(hidden[0, -1])
        return n_tokens

    def prepare(
        self,
        views: Iterable[int],
        prompts: Iterable[int],
        progress: Progress = lambda name, done, total: None,
    ) -> None:
        """Make and capture the fast stages ahead, so that no frame waits for them. Does nothing without them.

        views: numbers of cameras; prompts: numbers of tokens; progress: see Stages.build.
        Raises PoolExhausted if every slot is held.
        """
        if self._stages is not None:
            self._stages.build(views, prompts, (self.steps,), progress=progress)

    def newest(self) -> Prefix | None:
        """The newest prefix, held for the caller, or None before the first observation."""
        slot = self.pool.newest()
        return None if slot is None else self._hold(slot)

    def release(self, prefix: Prefix) -> None:
        """Give a prefix back; doing so twice is harmless."""
        if not prefix._released[0]:
            prefix._released[0] = True
            self.pool.release(prefix.slot)

    def act(
        self,
        prefix: Prefix,
        state: np.ndarray | None = None,
        noise: np.ndarray | Tensor | None = None,
        *,
        steps: int | None = None,
        guidance: Guidance | None = None,
        committed: np.ndarray | None = None,
    ) -> Chunk:
        """A chunk of motion from a prefix: sampled, or the likeliest action of a policy that acts by tokens.

        state: float [D], the newest joint state, for a policy that can be given one (policy.feels; None = the
        observation's); the others have their state in the prefix and ignore this. Relative actions are
        relative to the state the network was given.
        noise: float [H, A] instead of the request's own. steps: instead of the engine's.
        guidance: agreement with the previous chunk, see models.rtc and Engine.guidance.
        committed: float [d, D], absolute, instead of guidance: the leading actions, which the robot executes
            meanwhile. The chunk begins with exactly them and continues them. Only for policies that were
            trained to be given that many (policy.trained_delay, see models.committed).
        Raises ValueError for what does not fit the policy, or for both guidance and committed; a policy that
        acts by tokens takes none of noise, steps, guidance and committed.
        """
        request = next(self._action_requests)
        given = state if self.policy.feels else None
        origin = self.origin(prefix, state)
        with self._reading(prefix):
            kv = self.pool.view(prefix.slot, prefix.n_tokens)
            seen = Seen(kv, prefix.slot, self._last_hidden[prefix.slot], origin)
            actions, updates = self._acting(seen, How(request, noise, steps, guidance, committed))
        return Chunk(
            actions=actions,
            stamp_ns=prefix.stamp_ns,
            step_dt_s=self.step_dt_s,
            kv_version=prefix.version,
            request_id=request,
            update_magnitudes=updates,
            state=None if given is None else np.array(given, np.float32),
        )

    def ask(
        self,
        prefix: Prefix,
        *,
        max_tokens: int = 16,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Answer:
        """Let the language head continue the prefix's own prompt: an iterator of text, computed when read.

        The answer holds the prefix and a place for its own keys and values until it ends or is closed: newer
        frames do not disturb it, nor it them or an action. It ends at the end of the text, at a text that is
        in `stop` (which is not part of it), or at max_tokens.
        temperature, top_k, top_p: see models.decoding.Sampling; 0 is greedy. seed: of the draws, instead of
        the request's own.
        Raises ValueError for what cannot be or a policy that has no language head, PoolExhausted if too many
        are open.
        """
        if not self.policy.decodes:
            raise ValueError(f"a {self.policy.config.kind} policy has no language head; ask it nothing.")
        if not 1 <= max_tokens <= self._tails.max_tokens:
            raise ValueError(f"max_tokens is {max_tokens}; the engine takes 1 to {self._tails.max_tokens}.")
        sampling = Sampling(temperature, top_k, top_p)
        if not all(stop):
            raise ValueError("stop has an empty text, which ends every answer at once; leave it out.")
        self._check_held(prefix)
        tail = self._tails.acquire()
        self.pool.retain(prefix.slot)
        held, request = self._hold(prefix.slot), next(self._text_requests)
        if self._stages is not None:
            self._last_hidden[prefix.slot] = self._stages.last_hidden(prefix.slot, prefix.n_tokens)
        return Answer(
            self.policy,
            past=self.pool.view(prefix.slot, prefix.n_tokens),
            tail=self._tails.view(tail, max_tokens),
            last_hidden=self._last_hidden[prefix.slot],
            sampling=sampling,
            rng=np.random.default_rng((self.seed, request, 1) if seed is None else seed),
            stop=stop,
            on_close=(held.release, lambda: self._tails.release(tail)),
        )

    def guidance(
        self,
        prefix: Prefix,
        previous: Chunk,
        delay: int,
        execution: int | None = None,
        schedule: str = "LINEAR",
        jacobian: str = "identity",
        state: np.ndarray | None = None,
        max_weight: float | None = None,
    ) -> Guidance:
        """What makes `act(prefix, state, guidance=...)` agree with the chunk that is being executed.

        delay: actions of the new chunk that will be past when it comes (inference time in steps, rounded up).
        execution: actions after which it is free, by default all that the previous chunk covers.
        max_weight: greatest strength of the correction; by default the engine's steps, see models.rtc.
        Raises ValueError if the previous chunk ends before the new one begins, or begins after it, or the
        policy acts by tokens, which nothing guides.
        """
        if self.policy.acts != FLOW:
            raise ValueError(f"{self.policy.config.kind} acts by tokens, which cannot be guided.")
        rest = previous.rest(prefix.stamp_ns)[: self._acting.horizon]
        if not len(rest):
            raise ValueError(
                f"the previous chunk, of {previous.horizon} actions, ends before the new one begins; "
                "guide only with a chunk that overlaps."
            )
        raw = self.policy.raw_actions(rest, self.origin(prefix, state))
        end = len(rest) if execution is None else execution
        return Guidance(raw, delay, end, schedule, jacobian, max_weight or float(self.steps))

    def origin(self, prefix: Prefix, state: np.ndarray | None = None) -> np.ndarray:
        """The state that the network is given, and that relative actions are relative to."""
        return prefix.state if state is None or not self.policy.feels else state

    def noise(self, request: int) -> np.ndarray | None:
        """The noise of action request number `request`, float32 [H, A]: a function of it and the seed alone.

        Given to `act`, it makes that request's chunk again. None where nothing is random.
        """
        return self._acting.noise(request)

    def _hold(self, slot: int) -> Prefix:
        """A handle of its own for a slot that was just retained."""
        frame = self._frames[slot]
        assert frame is not None
        return Prefix(
            slot, frame.version, frame.stamp_ns, frame.n_tokens, frame.state, frame.instruction, self
        )

    def _reading(self, prefix: Prefix) -> Prefix:
        """Hold the prefix while a request reads it, whatever the caller does meanwhile."""
        self._check_held(prefix)
        self.pool.retain(prefix.slot)
        return self._hold(prefix.slot)

    def _check_held(self, prefix: Prefix) -> None:
        if prefix._released[0]:
            raise ValueError(f"prefix {prefix.version} was released; hold it until the last request on it.")
