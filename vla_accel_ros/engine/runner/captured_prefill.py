"""Computes prefixes by captured stages: passes them pixels, token ids and slots from observations and
policies.

The state is checked and the prompt tokenized while the device encodes the images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.kv.results import INSTRUCTIONS
from vla_accel_ros.engine.recent import Recent
from vla_accel_ros.engine.request import Request
from vla_accel_ros.engine.runner.frames import Extent, Part, Prefill, worded_policy
from vla_accel_ros.engine.runner.plain_prefill import PlainPrefill
from vla_accel_ros.engine.stages.plain.prefix import PlainFrame
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.engine.stages.prefill.groups import Frame
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.micro_requests import KV
from vla_accel_ros.models.policies import AnyPolicy, CapturablePolicy, FlowPolicy, WordedPolicy
from vla_accel_ros.types import Observation


class CapturedPrefill(Prefill):
    """Prefill by captured stages of kernels. The last hidden state is computed only on request, which is
    rare."""

    batches = True

    def __init__(self, stages: Stages) -> None:
        self._stages, self._groups = stages, stages.groups
        self.in_parts = stages.groups is not None

    def observe(self, observation: Observation, policy: AnyPolicy, slot: int) -> Extent:
        (extent,) = self.observe_together([observation], [policy], [slot])
        return extent

    def observe_together(
        self, observations: Sequence[Observation], policies: Sequence[AnyPolicy], slots: Sequence[int]
    ) -> list[Extent]:
        images = [
            cast(WordedPolicy, policy).host_images(observation)
            for observation, policy in zip(observations, policies, strict=True)
        ]
        tokens: list[list[int]] = []
        states: list[Tensor] = []

        def words() -> list[Tensor]:
            for observation, policy in zip(observations, policies, strict=True):
                tokens.append(cast(WordedPolicy, policy).host_words(observation))
                if self._stages.takes_state:
                    states.append(cast(FlowPolicy, policy).normalized_state(observation.state))
            return [torch.tensor(ids) for ids in tokens]

        def taken() -> None:
            for observation in observations:
                observation.check_intact()

        lengths = self._stages.observe(images, words, slots, taken, states)
        return [Extent(length, length - len(ids)) for length, ids in zip(lengths, tokens, strict=True)]

    def reword(self, frame: Prefix, instruction: str, slot: int) -> int:
        words = worded_policy(frame).words(instruction, frame.state)
        return self._stages.reword(frame.slot, frame.n_images, words, slot)

    def last_hidden(self, slot: int, n_tokens: int) -> Tensor:
        return self._stages.last_hidden(slot, n_tokens)

    def begin(self, observation: Observation, policy: AnyPolicy, slot: int) -> Frame:
        assert self._groups is not None
        worded = cast(WordedPolicy, policy)
        images = worded.host_images(observation)

        states: list[Tensor] = []

        def words() -> Tensor:
            if self._stages.takes_state:
                states.append(cast(FlowPolicy, policy).normalized_state(observation.state))
            return torch.tensor(worded.host_words(observation))

        return self._groups.begin(images, words, slot, observation.check_intact, states)

    def advance(self, frame: Frame) -> None:
        assert self._groups is not None
        self._groups.advance(frame)

    def launched(self, frame: Frame) -> Callable[[], None]:
        assert self._groups is not None
        return self._groups.launched(frame)

    def kept(self, prefix: Prefix) -> Mapping[str, Any]:
        return {KV: self._stages.pool.view(prefix.slot, prefix.n_tokens)}


class CapturedPlainPrefill(PlainPrefill):
    """Prefill by captured stages of the plain network's functions. Another prompt for a frame is not
    captured."""

    def __init__(self, policy: CapturablePolicy, pool: KVPool, stages: PlainStages) -> None:
        super().__init__(policy, pool, results=stages.results)
        self._stages = stages
        self._instructions = Recent[str, bool](INSTRUCTIONS)

    def captured(self, request: Request) -> bool:
        observation = request.observation
        return not self.results.worded or (
            observation is not None and observation.instruction in self._instructions
        )

    def begin(self, observation: Observation, policy: AnyPolicy, slot: int) -> Part:
        inputs = policy.host_inputs(observation)
        self._instructions.put(observation.instruction, True)
        state = cast(FlowPolicy, policy).normalized_state(observation.state)
        return self._stages.begin(inputs, state, slot, observation.check_intact)

    def advance(self, frame: PlainFrame) -> None:
        self._stages.resume(frame)
