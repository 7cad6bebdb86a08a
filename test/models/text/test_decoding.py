"""Decoding continues any model's prefix, one row as alone, and ends where it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from builders import make_config, make_model
from closeness import assert_near
from hypothesis import given
from hypothesis import strategies as st
from openvla_builders import make_openvla
from torch import Tensor

from shared.decoding import decode
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.text.decoding import Sampling

pytestmark = pytest.mark.usefixtures("without_gradients")

COUNT = 6


@pytest.fixture(params=["openvla", "pi05"])
def model(request: pytest.FixtureRequest) -> OpenVLA | Pi:
    return make_openvla(seed=1) if request.param == "openvla" else make_model(make_config(), seed=1)


def prefix(model: OpenVLA | Pi, batch: int, tokens: int, seed: int = 0) -> tuple[Tensor, KV]:
    generator = torch.Generator().manual_seed(seed)
    return model.prefix(torch.randn(batch, tokens, model.config.prefix.width, generator=generator))


def test_each_token_is_chosen_from_what_one_pass_over_all_before_it_says(model: OpenVLA | Pi) -> None:
    hidden, past = prefix(model, 2, 7)
    steps = list(decode(model, past, hidden[:, -1], COUNT))
    tokens = torch.stack([step.tokens for step in steps], dim=1)
    together, _ = model.extend(model.embed_tokens(tokens[:, :-1]), past)
    logits = model.logits(torch.cat((hidden[:, -1:], together), dim=1))
    assert_near(torch.stack([step.logits for step in steps], dim=1), logits)
    assert torch.equal(tokens, logits.argmax(dim=-1))


def test_rows_of_different_lengths_are_decoded_as_alone(model: OpenVLA | Pi) -> None:
    lengths = (7, 3, 5)
    alone = [prefix(model, 1, length, seed) for seed, length in enumerate(lengths)]
    past = KV(*(torch.full((x.shape[0], 3, x.shape[2], 7, x.shape[4]), 9.0) for x in alone[0][1]))
    for row, (length, (_, kv)) in enumerate(zip(lengths, alone, strict=True)):
        past.k[:, row : row + 1, :, :length] = kv.k
        past.v[:, row : row + 1, :, :length] = kv.v
    valid = torch.arange(7)[None] < torch.tensor(lengths)[:, None]
    last = torch.cat([hidden[:, -1] for hidden, _ in alone])
    together = list(decode(model, past, last, COUNT, valid=valid))
    for row, (hidden, kv) in enumerate(alone):
        for step, one in zip(together, decode(model, kv, hidden[:, -1], COUNT), strict=True):
            assert int(step.tokens[row]) == int(one.tokens)
            assert_near(step.logits[row], one.logits[0])


def test_a_row_repeats_its_stop_until_all_have_stopped(model: OpenVLA | Pi) -> None:
    hidden, past = prefix(model, 2, 7)
    free = torch.stack([step.tokens for step in decode(model, past, hidden[:, -1], COUNT)], dim=1).tolist()
    stop = free[0][1]
    rows = torch.stack(
        [s.tokens for s in decode(model, past, hidden[:, -1], COUNT, stop=stop)], dim=1
    ).tolist()
    ends = [row.index(stop) if stop in row else COUNT for row in free]
    for row, unstopped, end in zip(rows, free, ends, strict=True):
        assert row == (unstopped[:end] + [stop] * COUNT)[: len(row)]
    assert len(rows[0]) == min(COUNT, max(ends) + 1)


def test_one_row_ends_at_its_stop(model: OpenVLA | Pi) -> None:
    hidden, past = prefix(model, 1, 7)
    stop = int(model.logits(hidden[:, -1]).argmax())
    assert [int(step.tokens) for step in decode(model, past, hidden[:, -1], COUNT, stop=stop)] == [stop]


def test_nothing_is_decoded_if_nothing_is_asked_for(model: OpenVLA | Pi) -> None:
    hidden, past = prefix(model, 1, 7)
    assert list(decode(model, past, hidden[:, -1], 0)) == []


def test_draws_are_those_of_the_seed(model: OpenVLA | Pi) -> None:
    hidden, past = prefix(model, 2, 7)

    def draw(seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        steps = decode(model, past, hidden[:, -1], COUNT, temperature=2.0, rng=rng)
        return [step.tokens.tolist() for step in steps]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = torch.tensor([[0.0, 0.1, 0.05]])
    assert (
        Sampling(1e-6).choose(logits, np.random.default_rng(0)).tolist()
        == Sampling().choose(logits).tolist()
        == [1]
    )


def test_sampling_needs_a_source_of_chance() -> None:
    with pytest.raises(ValueError, match="rng"):
        Sampling(1.0).choose(torch.zeros(1, 3))


def share(logits: torch.Tensor, sampling: Sampling, draws: int = 4000) -> np.ndarray:
    """How often each id is drawn."""
    drawn = sampling.choose(logits.expand(draws, -1), np.random.default_rng(0))
    return np.bincount(drawn.numpy(), minlength=logits.shape[-1]) / draws


def test_sampling_draws_from_the_softmax_of_what_is_left() -> None:
    logits = torch.tensor([[2.0, 0.5, 1.0, -1.0, 1.0]])
    for sampling, left in (
        (Sampling(1.0), [0, 1, 2, 3, 4]),
        (Sampling(0.5), [0, 1, 2, 3, 4]),
        (Sampling(1.0, top_k=3), [0, 2, 4]),
        (Sampling(1.0, top_k=2), [0, 2]),  # of equals the first
        (Sampling(1.0, top_p=0.45), [0]),
        (Sampling(1.0, top_p=0.52), [0, 2]),
        (Sampling(2.0, top_k=4, top_p=0.59), [0, 2]),
    ):
        scores = torch.full_like(logits, -torch.inf)
        scores[:, left] = logits[:, left] / sampling.temperature
        expected = scores.softmax(dim=-1)[0].numpy()
        np.testing.assert_allclose(share(logits, sampling), expected, atol=0.03, err_msg=str(sampling))


@given(
    temperature=st.floats(0.1, 5.0),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    seed=st.integers(0, 999),
)
def test_only_the_likeliest_are_drawn_and_never_none(
    temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((3, 10)) * 3)
    drawn = Sampling(temperature, top_k, top_p).choose(logits, rng)
    again = Sampling(temperature, top_k, top_p).choose(logits, np.random.default_rng(1))
    assert torch.equal(again, Sampling(temperature, top_k, top_p).choose(logits, np.random.default_rng(1)))
    for row, token in zip(logits, drawn.tolist(), strict=True):
        likelier = row > row[token]
        assert int(likelier.sum()) < (top_k or 10)
        assert float((row / temperature).softmax(dim=0)[likelier].sum()) < top_p + 1e-9 or not likelier.any()


def test_one_token_to_draw_from_is_greedy() -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    for sampling in (Sampling(3.0, top_k=1), Sampling(3.0, top_p=1e-9), Sampling()):
        assert torch.equal(sampling.choose(logits, np.random.default_rng(0)), logits.argmax(dim=-1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
