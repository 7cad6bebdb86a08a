"""The two ways to act on a prefix: denoise a chunk, or say the tokens of an action.

Which one a policy takes is its own word (`policy.acts`), looked up in one table; the engine itself knows
neither. Both read the prefix's keys and values and write none of them. Nothing is allocated for keys and
values here that the constructor did not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.models.committed import Committed
from vla_accel_ros.models.decoding import decode
from vla_accel_ros.models.gemma import KV
from vla_accel_ros.models.policies import FLOW, TOKENS, AnyPolicy, FlowPolicy, TokenPolicy
from vla_accel_ros.models.rtc import Guidance
from vla_accel_ros.models.sampling import Flow, flow_times, sample

ACTING_AT_ONCE = 2
"""Requests for tokens that can be under way at the same time, the others wait; a loop has one."""


class Seen(NamedTuple):
    """What there is to act on. kv: the prefix; slot: where in the pool it is; last_hidden: gives that of its
    last token, [W]; state float [D]: what the network is given and relative actions are relative to."""

    kv: KV
    slot: int
    last_hidden: Callable[[], Tensor]
    state: np.ndarray


class How(NamedTuple):
    """What the caller asked for; see Engine.act."""

    request: int
    noise: np.ndarray | Tensor | None = None
    steps: int | None = None
    guidance: Guidance | None = None
    committed: np.ndarray | None = None


class Acted(NamedTuple):
    """actions float32 [H, D], in the robot's units; updates float32 [H], see Chunk.update_magnitudes."""

    actions: np.ndarray
    updates: np.ndarray


class Acting(Protocol):
    """A way to act. horizon: actions it makes at once; noise: of a request, None where nothing is random."""

    horizon: int

    def __call__(self, seen: Seen, how: How) -> Acted: ...

    def noise(self, request: int) -> np.ndarray | None: ...


class Settings(NamedTuple):
    """steps, time_rule: of flow sampling; seed: of its noise."""

    steps: int
    time_rule: str
    seed: int


class Fast(Protocol):
    """A free chunk by the fast stages, see engine.stages.Stages.act."""

    def act(
        self, noise: Tensor, state: Tensor | None, slots: list[int], lengths: list[int], steps: int
    ) -> Flow: ...


class FlowActing:
    """Euler steps from noise to a chunk, guided or begun with committed actions if asked.

    fast: computes free chunks instead of the plain network.
    """

    def __init__(self, policy: FlowPolicy, settings: Settings, fast: Fast | None = None) -> None:
        self._policy, self._fast = policy, fast
        self._steps, self._time_rule, self._seed = settings
        flow_times(self._steps, self._time_rule)
        self.horizon = int(policy.config.horizon)

    def __call__(self, seen: Seen, how: How) -> Acted:
        if how.committed is not None and how.guidance is not None:
            raise ValueError("act was given guidance and committed; they are two ways to agree, give one.")
        policy, model = self._policy, self._policy.model
        steps = self._steps if how.steps is None else how.steps
        flow_times(steps, self._time_rule)
        held = None if how.committed is None else Committed.of(policy, how.committed, seen.state)
        start, state = self.start(how.request, seen.state, how.noise)

        def at(x: Tensor, t: Tensor) -> Tensor:
            return model.velocity(x, t, state, seen.kv)

        def velocity(x: Tensor, t: float) -> Tensor:
            return at(x, torch.full((1,), t, device=x.device))

        with _gradients(how.guidance):
            field = velocity if how.guidance is None else how.guidance.guide(velocity, start)
            if held is not None:
                start, field = held.begin(start), held.hold(at)
            if self._fast is not None and how.guidance is None and held is None:
                flow = self._fast.act(start, state, [seen.slot], [seen.kv.k.shape[3]], steps)
            else:
                flow = sample(field, start, steps, self._time_rule)
            acted = self.acted(flow, seen.state)
        if how.committed is not None:
            acted.actions[: len(how.committed)] = how.committed
        return acted

    def start(
        self, request: int, state: np.ndarray, noise: np.ndarray | Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What the flow begins with: noise float32 [1, H, A], the request's own if none is given, and the
        normalised state [1, S] for a network that is given one."""
        policy = self._policy
        given = self._given(self.noise(request) if noise is None else noise)
        return given, policy.normalized_state(state)[None] if policy.feels else None

    def acted(self, flow: Flow, state: np.ndarray) -> Acted:
        """What became of a flow, for actions relative to a state [D]."""
        policy = self._policy
        updates = flow.update[0, :, : policy.joints].square().mean(dim=-1).sqrt()
        return Acted(policy.actions(flow.actions[0], state), updates.cpu().numpy())

    def noise(self, request: int) -> np.ndarray:
        """float32 [H, A], a function of the request and the seed alone."""
        shape = (self.horizon, self._policy.config.action_dim)
        return np.random.default_rng((self._seed, request, 0)).standard_normal(shape, dtype=np.float32)

    def _given(self, noise: np.ndarray | Tensor) -> Tensor:
        shape = (self.horizon, self._policy.config.action_dim)
        if tuple(noise.shape) != shape:
            raise ValueError(f"noise has shape {list(noise.shape)}; the policy takes {list(shape)}.")
        return torch.as_tensor(noise, dtype=torch.float32, device=self._policy.device)[None]


class TokenActing:
    """The D likeliest tokens, one after another: an action, a chunk of one."""

    horizon = 1

    def __init__(self, policy: TokenPolicy) -> None:
        self._policy = policy
        room = max(1, policy.joints - 1)
        config = policy.config.prefix
        self._tails = KVPool(config, ACTING_AT_ONCE, room, policy.device, policy.kv_dtype)
        self._free = threading.BoundedSemaphore(ACTING_AT_ONCE)

    @torch.inference_mode()
    def __call__(self, seen: Seen, how: How) -> Acted:
        self.check(how)
        policy = self._policy
        with self._free:
            slot = self._tails.acquire()
            try:
                room = self._tails.view(slot, self._tails.max_tokens)
                steps = decode(policy.model, seen.kv, seen.last_hidden()[None], policy.joints, room=room)
                tokens = torch.cat([step.tokens for step in steps])
            finally:
                self._tails.release(slot)
        return Acted(policy.actions(tokens, seen.state)[None], np.zeros(1, np.float32))

    @staticmethod
    def check(how: How) -> None:
        """Raise ValueError for what is for chunks that are denoised."""
        for name in ("noise", "steps", "guidance", "committed"):
            if getattr(how, name) is not None:
                raise ValueError(
                    f"act was given {name}, but the policy acts by tokens and has no use for it."
                )

    def noise(self, request: int) -> None:
        return None


def acting(policy: AnyPolicy, settings: Settings, fast: Fast | None = None) -> Acting:
    """The policy's way to act. Raises ValueError for settings that cannot be."""
    if policy.acts == TOKENS:
        return TokenActing(cast(TokenPolicy, policy))
    assert policy.acts == FLOW, policy.acts
    return FlowActing(cast(FlowPolicy, policy), settings, fast)


def _gradients(guidance: Guidance | None) -> torch.inference_mode | torch.no_grad:
    """Inference mode, unless the guidance needs a derivative of the network."""
    exact = guidance is not None and guidance.jacobian == "exact"
    return torch.no_grad() if exact else torch.inference_mode()
