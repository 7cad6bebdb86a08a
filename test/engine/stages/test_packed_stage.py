"""Forwards of fused kernels give what the plain ones do, for any segments, and schedulers say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from alternating import assert_answers_say_what_they_say_alone, assert_frames_say_what_they_say_alone
from builders import make_config, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla, make_openvla_config, make_openvla_folder
from torch import Tensor

from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.packed_stage import Words
from vla_accel_ros.engine.stages.prefill.layered import sizes as sizes_of
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Segment, Span, forward
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["gemma", "llama"])
def model(request: pytest.FixtureRequest) -> Pi | OpenVLA:
    return (
        make_model(make_config("pi05")) if request.param == "gemma" else make_openvla(make_openvla_config())
    )


def stack(model: Pi | OpenVLA):
    return model.language_model if isinstance(model, Pi) else model.language_model.model


def drawn(made: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=made)


@settings(max_examples=30)
@given(data=st.data())
@torch.inference_mode()
def test_any_segments(model: Pi | OpenVLA, data: st.DataObject) -> None:
    made = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    sizes = model.config.prefix
    pool = [drawn(made, 3, sizes.depth, sizes.kv_heads, 40, sizes.head_dim) for _ in range(2)]
    segments, written = [], []
    for _ in range(data.draw(st.integers(1, 5), label="segments")):
        count = data.draw(st.one_of(st.just(1), st.integers(1, 20)), label="rows")
        lengths = data.draw(st.lists(st.integers(1, 9), max_size=2), label="past")
        past = tuple(
            Span(pool[0], pool[1], 2, 10 * at, 10 * at + length) for at, length in enumerate(lengths)
        )
        shape = sizes.depth, 1, sizes.kv_heads, count, sizes.head_dim
        out = KV(torch.zeros(shape), torch.zeros(shape)) if data.draw(st.booleans(), label="out") else None
        segments.append(
            Segment(
                drawn(made, 1, count, sizes.width), past, data.draw(st.booleans(), label="causal"), out=out
            )
        )
        written.append(None if out is None else KV(out.k.clone(), out.v.clone()))
    plain = [s._replace(out=out) for s, out in zip(segments, written, strict=True)]

    fused = [rows.clone() for rows in PackedForward(stack(model), sizes, positions=64)(segments)]

    for got, want in zip(fused, forward(stack(model), plain), strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)
    for segment, kept in zip(segments, written, strict=True):
        if segment.out is not None:
            torch.testing.assert_close(KV(segment.out.k, segment.out.v), kept, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@torch.inference_mode()
def test_groups_of_layers_make_the_bits_of_a_forward_at_once(model: Pi | OpenVLA, groups: int) -> None:
    """Tokens by ids that are on the device, as by their embeddings; three of them, in room for four."""
    sizes = model.config.prefix
    pool, made = KVPool(sizes, 4, 8, CPU, torch.float32), torch.Generator().manual_seed(5)
    pool.k.normal_(generator=made)
    pool.v.normal_(generator=made)
    ids = list(torch.tensor([7, 3, 11]))
    given = [
        Segment(model.embed_tokens(one[None, None]), (pool.span(slot, 0, 4),), out=pool.span(slot, 4, 5))
        for slot, one in enumerate(ids)
    ]
    forward = PackedForward(stack(model), sizes, words=Words(model.embed_tokens, model.logits))
    whole = [rows.clone() for rows in forward(given)]
    written = pool.k.clone(), pool.v.clone()
    pool.k[:, :, :, 4:] = pool.v[:, :, :, 4:] = 0.0
    unread = [one._replace(x=torch.full_like(one.x, torch.nan)) for one in given]
    *none, found = forward.next_words(ids, unread, sizes_of([1.0] * sizes.depth, groups))
    assert none == [None] * (groups - 1) and found is not None
    for got, want in zip(found.hidden, whole, strict=True):
        assert torch.equal(got, want)
    scores = model.logits(torch.stack([rows[0, 0] for rows in whole]))
    torch.testing.assert_close(found.scores, scores)
    assert torch.equal(found.likeliest, scores.argmax(dim=-1))
    assert torch.equal(pool.k[:3, ..., :5, :], written[0][:3, ..., :5, :])
    assert torch.equal(pool.v[:3, ..., :5, :], written[1][:3, ..., :5, :])


def test_frames_in_a_pipeline_say_what_they_say_alone(tmp_path: Path) -> None:
    policy: Any = load_policy(make_openvla_folder(tmp_path, seed=4))
    forward = assert_frames_say_what_they_say_alone(policy, count=9)
    assert len(forward.stages) <= 10, "riders come in powers of two"


def test_answers_in_slots_and_pages_say_what_they_say_alone() -> None:
    model = make_model(make_config("pi05"))
    sizes = model.config.prefix
    pool, pages = KVPool(sizes, 4, 16, CPU, torch.float32), PagePool(sizes, 20, 3, CPU, torch.float32)
    forward = PackedForward(model.language_model, sizes)
    assert_answers_say_what_they_say_alone(model, pool, pages, forward, (5, 9, 3), 7)


@torch.inference_mode()
def test_padding_of_a_prompt_as_long_as_there_are_positions() -> None:
    model = make_openvla(make_openvla_config())
    x = drawn(torch.Generator().manual_seed(3), 1, 17, model.config.prefix.width)
    (got,) = PackedForward(model.language_model.model, model.config.prefix, positions=17)(
        [Segment(x, causal=True)]
    )
    torch.testing.assert_close(got, model.prefix(x)[0], atol=2e-5, rtol=1e-5)


def test_what_cannot_be() -> None:
    model = make_model(make_config("pi05"))
    sizes = model.config.prefix
    fused, x = PackedForward(model.language_model, sizes, positions=8), torch.zeros(1, 9, sizes.width)
    assert fused([]) == []
    with pytest.raises(ValueError, match="a row has position 8"):
        fused([Segment(x, causal=True)])
    with pytest.raises(ValueError, match="condition"):
        fused([Segment(x, condition=torch.zeros(1, 4))])
    pool = KVPool(sizes, 1, 8, CPU, torch.float16)
    with pytest.raises(ValueError, match=r"keys are torch.float16 on cpu"):
        fused([Segment(x[:, :1], (pool.span(0, 0, 3),))])
