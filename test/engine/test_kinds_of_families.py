"""Families without keys and values: one whose steps compute over the prefix again, and one that acts in one
forward. Captured plain functions give the same bits."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from builders import CAMERAS, make_observation, make_policy
from guiding import guidance_to
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.session import session_of
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest
from vla_accel_ros.models.network_policy import HostInputs, PolicyInputs, Upload
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Observation

STEPS = 3


class Network(torch.nn.Module):
    """pi05's by another name: the engine has no kernels for it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = [inner]

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name.startswith("_") else getattr(self._inner[0], name)


@dataclass(frozen=True)
class Recomputing(Policy):
    """Its steps read rows of features, and predict the clean chunk, as X-VLA does."""

    domain: float = 0.5

    @property
    def chain(self) -> Chain:
        config = self.config
        seen = Leaf("seen", (len(config.image_names) * config.image_tokens, config.prefix.width))
        rows = Leaf("rows", (config.max_tokens, config.prefix.width))
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("prefill", ("seen", "words", "domain"), (rows,)),
                MicroRequest(
                    "denoise", ("x", "t", "dt", "noise", "rows", "state"), (Leaf("actions"),), kept="step"
                ),
            ),
            inputs=(Leaf("domain", (1,), "float32"),),
            capturable=True,
        )

    def host_inputs(self, observation: Observation) -> HostInputs:
        return replace(super().host_inputs(observation), more={"domain": torch.tensor([self.domain])})

    def inputs(self, observation: Observation, upload: Upload | None = None) -> PolicyInputs:
        more = {"domain": torch.tensor([self.domain], device=self.device)}
        return replace(super().inputs(observation, upload), more=more)

    def prefill(  # type: ignore[override]
        self, seen: Tensor, words: Tensor, domain: Tensor
    ) -> dict[str, Any]:
        return {"rows": self.join(seen, words)[0] * domain}

    def clean(self, x: Tensor, rows: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(x + rows.mean(dim=0)[: x.shape[2]] + state[:, None])

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, dt: Tensor, noise: Tensor, rows: Tensor, state: Tensor
    ) -> Tensor:
        after = t + dt
        return (after * noise + (1.0 - after) * self.clean(x, rows, state) - x) / dt


def make_recomputing(**changes: Any) -> Recomputing:
    inner = make_policy("pi05")
    return Recomputing(**{**vars(inner), "model": Network(inner.model), **changes})


def rows_of(policy: Recomputing, observation: Observation) -> Tensor:
    given = policy.inputs(observation)
    seen = policy.encode(given.images)["seen"]
    rows: Tensor = policy.prefill(seen, given.tokens, given.more["domain"])["rows"]
    return rows


@pytest.mark.parametrize("options", [{}, {"fast": True}, {"staggered": 2}, {"staggered": 2, "fast": True}])
def test_a_family_whose_steps_compute_over_the_prefix(options: dict[str, Any]) -> None:
    """The chunk is the clean prediction of the last step, from noise and prediction mixed at each time."""
    policy = make_recomputing()
    engine = Engine(policy, steps=STEPS, slots=6, **options)
    for seed, cameras in ((0, CAMERAS), (1, CAMERAS[:1]), (2, CAMERAS)):
        observation = make_observation(seed, cameras)
        state = observation.state + 0.1
        with engine.observe(observation) as prefix, torch.inference_mode():
            chunk = engine.act(prefix, state)
            given = policy.inputs(observation)
            rows = policy.prefill(policy.encode(given.images)["seen"], given.tokens, given.more["domain"])[
                "rows"
            ]
            noise = torch.from_numpy(engine.runner.actor.noise(chunk.request_id))[None]
            x = clean = noise
            for t in flow_times(STEPS):
                clean = policy.clean(x, rows, policy.normalized_state(state)[None])
                x = (t - 1.0 / STEPS) * noise + (1.0 - t + 1.0 / STEPS) * clean
        np.testing.assert_allclose(chunk.actions, policy.actions(clean[0], state), atol=1e-5)
    assert engine.runner.pool.k.numel() == 0, "it holds no keys and values"


def test_captured_its_bits_are_the_plain_ones() -> None:
    policy, chunks = make_recomputing(), list[Any]()
    for fast in (False, True):
        engine = Engine(policy, steps=STEPS, fast=fast)
        engine.prepare((1, 2), (6, 20))
        for seed, cameras in ((0, CAMERAS), (1, CAMERAS[:1])):
            with engine.observe(make_observation(seed, cameras)) as prefix:
                previous = engine.act(prefix)
                guidance = guidance_to(engine, prefix, previous, 2)
                chunks += [previous, engine.act(prefix, guidance=guidance)]
    for plain, ours in zip(chunks[:4], chunks[4:], strict=True):
        np.testing.assert_array_equal(ours.actions, plain.actions)
        np.testing.assert_array_equal(ours.step_magnitudes, plain.step_magnitudes)


@dataclass(frozen=True)
class Shifted(Recomputing):
    """Its flow takes unequal steps, as Fast-WAM's does."""

    time_rule: ClassVar[str] = "shifted:5"

    @property
    def chain(self) -> Chain:
        *of_frame, _ = super().chain.micro_requests
        denoise = MicroRequest("denoise", ("x", "t", "rows", "state"), (Leaf("actions"),), kept="step")
        return Chain((*of_frame, denoise), inputs=super().chain.inputs, capturable=True)

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, rows: Tensor, state: Tensor
    ) -> Tensor:
        return t * self.clean(x, rows, state)


@pytest.mark.parametrize("options", [{}, {"fast": True}, {"staggered": 2}, {"staggered": 2, "fast": True}])
def test_a_family_whose_steps_are_unequal(options: dict[str, Any]) -> None:
    """The times are those that Fast-WAM's own code has for ten steps, in thousandths."""
    policy, steps = Shifted(**vars(make_recomputing())), 10
    times = [1000, 978.26, 952.38, 921.05, 882.35, 833.33, 769.23, 681.82, 555.56, 357.14]
    assert flow_times(steps, policy.time_rule) == pytest.approx([t / 1000 for t in times], abs=1e-5)
    engine = Engine(policy, steps=steps, slots=6, **options)
    observation = make_observation(5)
    with engine.observe(observation) as prefix, torch.inference_mode():
        chunk = engine.act(prefix)
        rows, state = rows_of(policy, observation), policy.normalized_state(observation.state)[None]
        x = torch.from_numpy(engine.runner.actor.noise(chunk.request_id))[None]
        for t, after in zip(times, [*times[1:], 0], strict=True):
            x = x + (after - t) / 1000 * policy.denoise(x, torch.tensor([t / 1000]), rows, state)
    np.testing.assert_allclose(chunk.actions, policy.actions(x[0], observation.state), atol=1e-4)
    given: dict[str, Any] = {"model": Path("model"), "contract": "", "urdf": "", "topics": {}, "checksum": ""}
    settings = json.loads(session_of(engine, {}, **given).settings)
    assert settings["time_rule"] == "auto", "the rule is the family's, which replays have, too"
    with pytest.raises(ValueError, match="shifted:5"):
        Engine(policy, solver="ab2")


@dataclass(frozen=True)
class AtOnce(Recomputing):
    """It acts in one forward over its features and the newest joints, as OpenVLA-OFT does."""

    @property
    def chain(self) -> Chain:
        *of_frame, _ = super().chain.micro_requests
        forward = MicroRequest("forward", ("rows", "state"), (Leaf("actions"),), kept="chunk")
        return Chain((*of_frame, forward), inputs=super().chain.inputs, capturable=True)

    def forward(self, rows: Tensor, state: Tensor) -> dict[str, Tensor]:
        shape = self.config.horizon, self.config.action_dim
        return {"actions": self.clean(rows.new_zeros(1, *shape), rows, state[None])[0]}


def make_at_once() -> AtOnce:
    return AtOnce(**vars(make_recomputing()))


@pytest.mark.parametrize("options", [{}, {"scheduling": "batches"}, {"lanes": "two"}, {"fast": True}])
def test_a_family_that_acts_in_one_forward(options: dict[str, Any]) -> None:
    policy = make_at_once()
    engine = Engine(policy, **options)
    observation = make_observation(4)
    state = observation.state - 0.2
    with engine.observe(observation) as prefix, torch.inference_mode():
        chunks = engine.act(prefix), engine.act(prefix, state)
        rows = rows_of(policy, observation)
        for chunk, joints in zip(chunks, (observation.state, state), strict=True):
            raw = policy.forward(rows, policy.normalized_state(joints))["actions"]
            np.testing.assert_array_equal(chunk.actions, policy.actions(raw, joints))
    assert chunks[0].actions.shape == (8, 6) and [chunk.request_id for chunk in chunks] == [0, 1]


@pytest.mark.parametrize(
    "given",
    [{"steps": 3}, {"noise": np.zeros((8, 8), np.float32)}, {"committed": np.zeros((1, 6), np.float32)}],
)
def test_what_only_steps_take_is_refused(given: dict[str, Any]) -> None:
    engine = Engine(make_at_once())
    with engine.observe(make_observation()) as prefix, pytest.raises(ValueError, match=next(iter(given))):
        engine.act(prefix, **given)


@pytest.mark.parametrize(
    ("name", "value"), [("staggered", 2), ("solver", "ab2"), ("token_mode", "pipelined")]
)
def test_options_of_other_kinds_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Engine(make_at_once(), **{name: value})


def test_a_result_larger_than_declared_is_refused() -> None:
    class Larger(Recomputing):
        def prefill(self, seen: Tensor, words: Tensor, domain: Tensor) -> dict[str, Any]:  # type: ignore[override]
            return {"rows": torch.zeros(999, self.config.prefix.width)}

    engine = Engine(Larger(**vars(make_recomputing())))
    with pytest.raises(RuntimeError, match=r"rows.*999"):
        engine.observe(make_observation())
    assert engine.runner.pool.free == engine.runner.pool.slots
