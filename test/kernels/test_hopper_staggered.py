"""Attention of staggered chunks in kernels/cuda: it compiles without a device, and on one of sm_90 it is the
reference's, the same bits each time and whatever sits beside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drawing import Drawing, assert_near, ints, poison

from vla_accel_ros.kernels.candidates import HOPPER, STAGGERED
from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.cuda import rotary_attention as kernel
from vla_accel_ros.kernels.reference import attention
from vla_accel_ros.kernels.shapes import Config

BF16 = torch.bfloat16
CANDIDATES = HOPPER["attend_rotary"]


def drawn(lengths: tuple[int, ...], tokens: int, kv_heads: int, groups: int) -> list[Any]:
    """Arguments but the last; keys and values beyond a length are no numbers."""
    draw, batch, heads = Drawing(sum(lengths)), len(lengths), kv_heads * groups
    pool = poison(2, batch + 1, 3, kv_heads, max(lengths) + 30, 256, dtype=BF16)
    slots = list(range(batch, 0, -1))
    for slot, length in zip(slots, lengths, strict=True):
        pool[:, slot, :, :, :length] = draw(2, 3, kv_heads, length, 256, dtype=BF16)
    angles = draw(max(lengths) + tokens, 128)
    return [
        draw(batch, tokens, (heads + 2 * kv_heads) * 256, dtype=BF16), angles.cos(), angles.sin(),
        poison(batch, tokens, heads, 256, dtype=BF16), poison(batch, kv_heads, tokens, 256, dtype=BF16),
        pool[0][:, 1], pool[1][:, 2], ints(*slots), ints(*lengths),
        poison(batch, tokens, heads * 256, dtype=BF16),
    ]  # fmt: skip


def attended(arguments: list[Any], config: Config, alone: int) -> torch.Tensor:
    out = poison(*arguments[-1].shape, dtype=BF16)
    given = (*arguments[:-1], out, alone)
    assert kernel.takes(*given, config=config)
    kernel.attend_rotary(*given, config=config)
    return out


def test_candidates_compile_without_a_device() -> None:
    for config in CANDIDATES[::2]:
        macros = kernel.macros(config, STAGGERED, 51)
        assert macros is not None
        assert compiling.compiled("rotary_attention", macros, "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("batch", [1, 3, 5, 10, 16])
@pytest.mark.parametrize("config", CANDIDATES, ids=str)
def test_parts_of_all_sequences_are_as_many_as_asked_for_but_at_most_a_cluster(
    config: Config, batch: int
) -> None:
    macros = kernel.macros(config, batch, 50)
    assert macros is not None
    assert macros["SPLIT"] == max(1, min(8, config.split // batch))


def test_more_rows_than_memory_has_room_for_are_not_taken() -> None:
    assert kernel.macros(Config(128, 112, 16, 30, 8, 1, "cuda"), 10, 64) is None


@pytest.mark.gpu
@pytest.mark.parametrize("config", CANDIDATES, ids=str)
@pytest.mark.parametrize(
    ("lengths", "tokens", "alone", "kv_heads", "groups"),
    [
        ((532,), 51, 1, 1, 8),
        ((532, 276, 3), 51, 1, 1, 8),
        ((532, 100, 9, 300), 50, 0, 1, 8),
        (tuple(788 - 37 * b for b in range(10)), 50, 0, 1, 8),
        (tuple(532 - 31 * b for b in range(16)), 51, 1, 1, 8),
        ((33, 70), 7, 1, 1, 8),
        ((300, 45), 56, 0, 1, 5),
        ((9, 512, 128), 16, 1, 2, 3),
        ((1, 8), 1, 0, 2, 1),
    ],
    ids=str,
)
def test_it_is_the_twins(
    config: Config, lengths: tuple[int, ...], tokens: int, alone: int, kv_heads: int, groups: int
) -> None:
    arguments = drawn(lengths, tokens, kv_heads, groups)
    ours = attended(arguments, config, alone)
    assert torch.equal(attended(arguments, config, alone), ours)
    y, cos, sin, q, k_tail, k, v, slots, of, out = arguments
    attention.attend_rotary(
        y, cos, sin, q, k_tail, k.nan_to_num(), v.nan_to_num(), slots, of, out, alone
    )  # fmt: skip
    assert_near(ours, out, BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [64, 100, 130])
def test_more_tokens_than_a_tile_has(tokens: int) -> None:
    arguments = drawn((5, 600, 64), tokens, 1, 8)
    ours = attended(arguments, Config(128, 64, 16, 9, 8, 1, "cuda"), 1)
    y, cos, sin, q, k_tail, k, v, slots, lengths, out = arguments
    attention.attend_rotary(y, cos, sin, q, k_tail, k.nan_to_num(), v.nan_to_num(), slots, lengths, out, 1)
    assert_near(ours, out, BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("config", CANDIDATES, ids=str)
def test_a_sequence_becomes_the_same_whatever_is_beside_it(config: Config) -> None:
    arguments = drawn(tuple(532 - 31 * b for b in range(STAGGERED)), 51, 1, 8)
    before = attended(arguments, config, 1)[3]
    arguments[0][:3].neg_(), arguments[0][4:].mul_(0.5)
    arguments[8].copy_(ints(5, 100, 7, 532 - 93, 300, 1, 11, 12, 13, 14))
    assert torch.equal(attended(arguments, config, 1)[3], before)
