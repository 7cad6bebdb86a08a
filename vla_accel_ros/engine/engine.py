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
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine import guiding
from vla_accel_ros.engine.acting import Acted, How, Seen, Settings
from vla_accel_ros.engine.in_turn import InTurn
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.parts import Choices, parts
from vla_accel_ros.engine.precision import EXACT
from vla_accel_ros.engine.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.stages import Progress
from vla_accel_ros.engine.text import Answer
from vla_accel_ros.engine.types import Chunk, Observation
from vla_accel_ros.engine.underway import Begun
from vla_accel_ros.models.decoding import Sampling
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.rtc import Guidance


class Engine:
    """A policy that runs, of any family (models.policies).

    slots: prefixes alive at once; four are the newest, one being computed, one acted on, one asked about.
    steps, time_rule: flow sampling, see models.sampling; None is the rule of whoever trained the policy.
    step_dt_s: time between two actions.
    seed: the noise of request r is a function of (seed, r) alone.
    answers, answer_tokens: most answers being written at once, and most tokens in one.
    turns: how frames of a policy that acts by tokens share forwards, see act_in_turn; None: they do not.
    fast: whether prefixes and chunks are computed by engine.stages, where the model is a pi0 or pi0.5. What
        needs more than a chunk (guidance, committed actions) is computed by the plain model. Frames of a
        policy that acts by tokens are computed by engine.packed_stage.
    precision: of the fast stages, see engine.precision; all but "exact" change the actions.
    staggered: chunks under way at once, see act_staggered, each of which holds a slot; 0 = one at a time.

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
        precision: str = EXACT,
        turns: InTurn | None = None,
        staggered: int = 0,
    ) -> None:
        if not step_dt_s > 0:
            raise ValueError(f"step_dt_s is {step_dt_s}; give the time between two actions in seconds.")
        for name, number, least in (
            ("seed", seed, 0),
            ("answers", answers, 1),
            ("answer_tokens", answer_tokens, 1),
        ):
            if number < least:
                raise ValueError(f"{name} is {number}; give {least} or more.")
        self.policy, self.steps, self.seed, self.step_dt_s = policy, steps, seed, step_dt_s
        self.time_rule = time_rule or policy.time_rule
        config, device, dtype = policy.config, policy.device, policy.kv_dtype
        self.pool = KVPool(config.prefix, slots, config.max_tokens, device, dtype)
        self._prefixes = Prefixes(self.pool)
        self._action_requests = itertools.count()
        settings, turns = Settings(steps, self.time_rule, seed), turns or InTurn()
        choices = Choices(settings, answers, answer_tokens, fast, turns, precision, staggered)
        self._parts = made = parts(policy, self.pool, choices)
        self._seeing, self._acting, self._texts = made.seeing, made.acting, made.texts
        self._in_turn, self._under_way = made.in_turn, made.under_way

    def observe(self, observation: Observation) -> Prefix:
        """Compute the prefix of an observation and publish it as the newest; the caller releases it.

        Raises ValueError for an observation the policy cannot take, PoolExhausted if every slot is held, Torn
        if its images were overwritten before their pixels were here.
        """
        with self.pool.filling() as slot, torch.inference_mode():
            seen = self._seeing.observe(observation, slot)
            return self._prefixes.publish(slot, observation, *seen)

    def reword(self, prefix: Prefix, instruction: str) -> Prefix:
        """The same frame with other words, as for a question about it; the caller releases it.

        Its cameras are not encoded again; engine.seeing says what else is used again. The newest frame stays
        the newest. Raises ValueError for words that are too many or a policy that has no language head,
        PoolExhausted if every slot is held.
        """
        self._parts.speaking(self.policy.config.kind)
        with self._prefixes.hold(prefix) as frame, self.pool.filling() as slot, torch.inference_mode():
            n_tokens = self._seeing.reword(frame, instruction, slot)
            return self._prefixes.beside(frame, slot, n_tokens, instruction)

    @property
    def copied_bytes(self) -> int:
        """Memory of the quantised copies of weights so far; see engine.precision."""
        return self._parts.copied_bytes

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
        self._parts.prepare(self.pool, self.steps, views, prompts, progress)

    def newest(self) -> Prefix | None:
        """The newest prefix, held for the caller, or None before the first observation."""
        return self._prefixes.newest()

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
        given = self._felt(state)
        request, origin = next(self._action_requests), self.origin(prefix, given)
        with self._prefixes.hold(prefix):
            place = prefix.slot, prefix.n_tokens
            hidden = partial(self._seeing.last_hidden, *place)
            seen = Seen(self.pool.view(*place), prefix.slot, hidden, origin)
            acted = self._acting(seen, How(request, noise, steps, guidance, committed))
        return self._chunk(prefix, request, acted, given)

    @property
    def acts_in_turn(self) -> bool:
        """Whether frames share forwards, and act_in_turn is for acting on every frame."""
        return self._in_turn is not None

    def act_in_turn(self, prefix: Prefix, state: np.ndarray | None = None) -> Chunk | None:
        """The newest action that is finished with this frame, which was not given before; None while none is.

        Where frames overlap it is an earlier frame's, with that one's stamp and version (engine.in_turn).
        state: as of act, ignored. Raises ValueError for an engine without turns.
        """
        if self._in_turn is None:
            raise ValueError("frames are not computed in turn; give the engine another mode, or use act.")
        with self._prefixes.hold(prefix) as held:
            finished = self._in_turn.take(held)
        if finished is None:
            return None
        return self._chunk(finished[0], next(self._action_requests), finished[1])

    @property
    def staggers(self) -> bool:
        """Whether several chunks are under way at once, and act_staggered is for acting."""
        return self._under_way is not None

    @property
    def under_way(self) -> tuple[int, ...]:
        """Requests begun by act_staggered that are not finished, oldest first."""
        return () if self._under_way is None else self._under_way.requests

    def room_for(self, prefix: Prefix) -> bool:
        """Whether act_staggered can begin a chunk on it: also where its instruction drops all others."""
        return self._under_way is not None and self._under_way.room_for(prefix.instruction)

    def act_staggered(self, prefix: Prefix | None, state: np.ndarray | None = None) -> Chunk | None:
        """Begin a chunk on a prefix, and take the next denoising step of all that are under way.

        Returns the chunk which that step finished, if any: the one that act would have made of its own prefix
        and state, with the noise of its request. prefix: None begins none. state: as of act. With another
        instruction than the last prefix's, what is under way is dropped.
        Raises ValueError for an engine that does not stagger, or without room.
        """
        if self._under_way is None:
            raise ValueError("chunks are made one at a time; give the engine staggered, or use act.")
        begun = None
        if prefix is not None:
            given = self._felt(state)
            held, request = self._prefixes.hold(prefix), next(self._action_requests)
            begun = Begun(held, request, self.origin(prefix, given), given)
        finished = self._under_way.advance(begun)
        if finished is None:
            return None
        done, acted = finished
        return self._chunk(done.prefix, done.request, acted, done.state)

    def forget_turns(self) -> None:
        """Finish nothing that was given to act_in_turn or act_staggered so far, as after a pause."""
        self._parts.forget()

    def _felt(self, state: np.ndarray | None) -> np.ndarray | None:
        """A copy of a state that came with a request, as chunks record it; None if it makes no difference."""
        return None if state is None or not self.policy.feels else np.array(state, np.float32)

    def _chunk(self, prefix: Prefix, request: int, acted: Acted, state: np.ndarray | None = None) -> Chunk:
        return Chunk(
            actions=acted.actions,
            stamp_ns=prefix.stamp_ns,
            step_dt_s=self.step_dt_s,
            kv_version=prefix.version,
            request_id=request,
            update_magnitudes=acted.updates,
            state=state,
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
        in `stop` (which is not part of it), or at max_tokens. All answers under way share their forwards.
        temperature, top_k, top_p: see models.decoding.Sampling; 0 is greedy. seed: of the draws, instead of
        the request's own.
        Raises ValueError for what cannot be or a policy that has no language head, PoolExhausted if too many
        are open.
        """
        texts = self._parts.speaking(self.policy.config.kind)
        sampling = Sampling(temperature, top_k, top_p)
        with self._prefixes.hold(prefix) as held:
            hidden = self._seeing.last_hidden(held.slot, held.n_tokens)
            return texts.begin(held.slot, held.n_tokens, hidden, max_tokens, sampling, seed, stop)

    @property
    def places(self) -> int:
        """How many more answers may be begun."""
        return 0 if self._texts is None else self._texts.places

    def speak(self) -> bool:
        """One more token for every answer under way, in one forward; False if there is none."""
        return self._texts is not None and self._texts.advance()

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
        overlap = guiding.Overlap(delay, execution, schedule, jacobian, max_weight or float(self.steps))
        origin, horizon = self.origin(prefix, state), self._acting.horizon
        return guiding.guidance(self.policy, previous, prefix.stamp_ns, origin, horizon, overlap)

    def origin(self, prefix: Prefix, state: np.ndarray | None = None) -> np.ndarray:
        """The state that the network is given, and that relative actions are relative to: float32 [D]."""
        felt = self._felt(state)
        return prefix.state if felt is None else felt

    def noise(self, request: int) -> np.ndarray | None:
        """The noise of action request number `request`, float32 [H, A]: a function of it and the seed alone.

        Given to `act`, it makes that request's chunk again. None where nothing is random.
        """
        return self._acting.noise(request)
