"""A packed forward computes, for each of its requests, what the request alone would."""

from __future__ import annotations

import pytest
import torch
from builders import make_config, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla, make_openvla_config
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import FlowStep, Segment, forward, velocities
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi


def rows(width: int, count: int, seed: int) -> Tensor:
    return torch.randn(1, count, width, generator=torch.Generator().manual_seed(seed))


def places(model: Pi | OpenVLA, tokens: int) -> KV:
    config = model.config.prefix
    shape = config.depth, 1, config.kv_heads, tokens, config.head_dim
    return KV(torch.zeros(shape), torch.zeros(shape))


@pytest.fixture(scope="module")
def llama() -> OpenVLA:
    return make_openvla(make_openvla_config())


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def pi(request: pytest.FixtureRequest) -> Pi:
    return make_model(make_config(request.param))


@torch.inference_mode()
def test_decodes_that_ride_in_a_prefill_are_what_they_are_alone(llama: OpenVLA) -> None:
    width = llama.config.prefix.width
    _, first = llama.prefix(rows(width, 11, 1))
    _, second = llama.prefix(rows(width, 17, 2))
    prefill = Segment(rows(width, 9, 3), causal=True, out=places(llama, 9))
    rider = Segment(rows(width, 1, 4), (first,), out=places(llama, 1))
    another = Segment(rows(width, 1, 5), (second,), out=places(llama, 1))

    packed = forward(llama.language_model.model, [prefill, rider, another])

    hidden, kv = llama.prefix(prefill.x)
    torch.testing.assert_close(packed[0], hidden, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(prefill.out, kv, atol=1e-5, rtol=1e-5)
    for segment, past, got in ((rider, first, packed[1]), (another, second, packed[2])):
        hidden, kv = llama.extend(segment.x, past)
        torch.testing.assert_close(got, hidden, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(segment.out, kv, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_draft_behind_a_prompt_is_what_decoding_it_would_be(llama: OpenVLA) -> None:
    prompt, draft = rows(llama.config.prefix.width, 8, 1), rows(llama.config.prefix.width, 3, 2)
    whole = Segment(torch.cat((prompt, draft), dim=1), causal=True)

    (hidden,) = forward(llama.language_model.model, [whole])

    _, past = llama.prefix(prompt)
    decoded, _ = llama.extend(draft, past)
    torch.testing.assert_close(hidden[:, 8:], decoded, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_alone_is_bit_equal_to_the_model_itself(llama: OpenVLA) -> None:
    width = llama.config.prefix.width
    _, past = llama.prefix(rows(width, 11, 1))
    segments = [
        Segment(rows(width, 9, 3), causal=True, out=places(llama, 9)),
        Segment(rows(width, 1, 4), (past,), out=places(llama, 1)),
    ]

    alone = forward(llama.language_model.model, segments, together=False)

    for got, out, (hidden, kv) in zip(
        alone,
        [segment.out for segment in segments],
        [llama.prefix(segments[0].x), llama.extend(segments[1].x, past)],
        strict=True,
    ):
        assert out is not None
        assert torch.equal(got, hidden)
        assert torch.equal(out.k, kv.k) and torch.equal(out.v, kv.v)


def flow_steps(model: Pi, lengths: list[int], times: list[float], seed: int) -> list[FlowStep]:
    config = model.config
    made = torch.Generator().manual_seed(seed)
    steps = []
    for index, (length, t) in enumerate(zip(lengths, times, strict=True)):
        _, kv = model.prefix(rows(config.prefix.width, length, seed + index))
        x = torch.randn(1, config.horizon, config.action_dim, generator=made)
        state = torch.randn(1, config.state_dim, generator=made) if config.kind == "pi0" else None
        steps.append(FlowStep(x, torch.tensor([t]), state, kv))
    return steps


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=5), seed=st.integers(0, 1000), data=st.data()
)
@torch.inference_mode()
def test_flow_steps_at_different_times_on_different_prefixes(
    pi: Pi, lengths: list[int], seed: int, data: st.DataObject
) -> None:
    times = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(lengths), max_size=len(lengths)))
    steps = flow_steps(pi, lengths, times, seed)
    for packed, alone, step in zip(
        velocities(pi, steps), velocities(pi, steps, together=False), steps, strict=True
    ):
        torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-5)
        assert isinstance(step.kv, KV)
        assert torch.equal(alone, pi.velocity(step.x, step.t, step.state, step.kv))


def test_a_condition_for_some_only_is_refused(pi: Pi) -> None:
    width = pi.config.expert.width
    some = [Segment(rows(width, 2, 0), condition=torch.zeros(1, width)), Segment(rows(width, 2, 1))]
    with pytest.raises(ValueError, match="1 of 2 segments"):
        forward(pi.expert, some)


def test_nothing_to_do_is_nothing_done(llama: OpenVLA) -> None:
    assert forward(llama.language_model.model, []) == []
