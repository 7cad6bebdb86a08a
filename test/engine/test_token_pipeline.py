"""Frames in one pipeline say what each would say alone, whatever comes, fails or is dropped meanwhile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla, make_openvla_config
from torch import Tensor

from vla_accel_ros.engine.kv_pool import KVPool, PoolExhausted
from vla_accel_ros.engine.token_pipeline import Finished, TokenPipeline
from vla_accel_ros.models.decoding import decode
from vla_accel_ros.models.openvla import OpenVLA

MODEL = make_openvla(make_openvla_config())


def prompt(seed: int, tokens: int = 9) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(1, tokens, MODEL.config.prefix.width, generator=made)


def make_pool(slots: int, max_tokens: int = 64) -> KVPool:
    return KVPool(MODEL.config.prefix, slots, max_tokens, torch.device("cpu"), torch.float32)


@torch.inference_mode()
def greedy(embeddings: Tensor, tokens: int) -> tuple[int, ...]:
    """Prefill, then token by token: what the model says by itself."""
    hidden, past = MODEL.prefix(embeddings)
    steps = decode(MODEL, past, hidden[:, -1], count=tokens)
    return tuple(int(step.tokens) for step in steps)


def test_every_forward_takes_a_frame_in_and_one_out() -> None:
    pool = make_pool(slots=4)
    pipeline = TokenPipeline(MODEL, pool, tokens=4)
    frames = {number: prompt(number) for number in range(6)}

    finished = [pipeline.step(number, embeddings) for number, embeddings in frames.items()]

    assert [[one.frame for one in out] for out in finished] == [[], [], [], [0], [1], [2]]
    assert all(one.tokens == greedy(frames[one.frame], 4) for out in finished for one in out)
    assert all(one.forwards == 4 for out in finished for one in out)
    assert [one.frame for one in pipeline.drain()] == [3, 4, 5]
    assert pool.free == 4


def test_a_right_draft_finishes_in_the_prefill() -> None:
    pool, embeddings = make_pool(slots=1), prompt(1)
    said = greedy(embeddings, 5)
    (finished,) = TokenPipeline(MODEL, pool, tokens=5).step(7, embeddings, draft=said)
    assert finished == Finished(frame=7, tokens=said, forwards=1, drafted=4, accepted=4)


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_wrong_draft_costs_nothing_but_its_rows(right: int) -> None:
    embeddings = prompt(2)
    said = greedy(embeddings, 5)
    wrong = (said[right] + 1) % MODEL.config.vocab
    pipeline = TokenPipeline(MODEL, make_pool(slots=1), tokens=5)

    finished = pipeline.step(0, embeddings, draft=(*said[:right], wrong, *said[right + 1 :]))
    finished += pipeline.drain()

    assert finished == [Finished(0, said, forwards=5 - right, drafted=4, accepted=right)]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 9), together=st.booleans())
def test_any_schedule_says_the_same(data: st.DataObject, tokens: int, together: bool) -> None:
    """Frames come or not, are drafted rightly, wrongly or not at all, are dropped, and have any length."""
    pool = make_pool(slots=tokens)
    pipeline = TokenPipeline(MODEL, pool, tokens, together)
    frames: dict[int, Tensor] = {}
    finished: list[Finished] = []
    for number in range(data.draw(st.integers(1, 12), label="ticks")):
        event = data.draw(st.sampled_from(["frame", "frame", "nothing", "drop"]), label="event")
        if event == "frame":
            frames[number] = prompt(
                data.draw(st.integers(0, 3), label="scene"), data.draw(st.integers(1, 12), label="length")
            )
            truth = greedy(frames[number], tokens)
            right = data.draw(st.integers(0, tokens), label="right")
            noise = data.draw(st.lists(st.integers(0, MODEL.config.vocab - 1), max_size=10), label="noise")
            finished += pipeline.step(number, frames[number], draft=(*truth[:right], *noise))
        elif event == "drop" and pipeline.in_flight:
            dropped = data.draw(st.sampled_from(pipeline.in_flight), label="dropped")
            pipeline.drop(dropped)
            del frames[dropped]
        else:
            finished += pipeline.step()
    finished += pipeline.drain()

    assert {one.frame: one.tokens for one in finished} == {n: greedy(e, tokens) for n, e in frames.items()}
    assert len(finished) == len(frames)
    assert pool.free == pool.slots


def test_a_full_pool_refuses_the_new_frame_and_keeps_the_others() -> None:
    pipeline = TokenPipeline(MODEL, make_pool(slots=1), tokens=3)
    pipeline.step(0, prompt(0))
    with pytest.raises(PoolExhausted, match="all 1 KV slots are held"):
        pipeline.step(1, prompt(1))
    assert [one.tokens for one in pipeline.drain()] == [greedy(prompt(0), 3)]


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="tokens is 0"):
        TokenPipeline(MODEL, make_pool(1), tokens=0)
    pipeline = TokenPipeline(MODEL, make_pool(slots=1, max_tokens=10), tokens=3)
    with pytest.raises(ValueError, match=r"frame 4 needs 9 \+ 2 tokens but a KV slot has 10"):
        pipeline.step(4, prompt(0))
    assert pipeline.in_flight == ()
    with pytest.raises(KeyError, match="frame 4 is not in flight"):
        pipeline.drop(4)


def test_nothing_in_flight_and_nothing_new_is_nothing() -> None:
    assert TokenPipeline(MODEL, make_pool(1), tokens=2).step() == []


def test_the_model_of_these_tests_says_different_things() -> None:
    """Otherwise they would pass for a pipeline that mixes frames up."""
    assert isinstance(MODEL, OpenVLA)
    assert len({greedy(prompt(seed), 5) for seed in range(4)}) == 4
