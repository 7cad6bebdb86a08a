"""triton/attention.py computes what its reference does, whatever the numbers of keys, and reads no others."""

from __future__ import annotations

import pytest
import torch
from drawing import DEVICE, Drawing, assert_near, ints, poison
from torch import Tensor

from vla_accel_ros.kernels.reference import attention
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import attention as kernels
from vla_accel_ros.kernels.triton import rotary_attention as rotary
from vla_accel_ros.kernels.triton.launch import Scratch


def run(
    kernel: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    parts: int = 1,
    alone: int = 0,
    tail: tuple[Tensor, Tensor, Tensor] | tuple[()] = (),
    seen: Tensor | None = None,
) -> Tensor:
    batch, tokens, heads, head = q.shape
    out = poison(batch, tokens, heads * head, dtype=q.dtype)
    slots = ints(*(k.shape[0] - 1 - b for b in range(batch)))
    arguments = (q, k, v, slots, lengths, out, *(tail or (None, None, None)), alone, seen)
    if kernel:
        # A launch cuts the keys of two sequences into half as many parts each.
        config, scratch = Config(16, 16, 16, split=parts * batch), Scratch.of(DEVICE, 1 << 18, 1)
        kernels.attend(*arguments, config=config, scratch=scratch)
    else:
        attention.attend(*arguments)
    return out


def drawn(draw: Drawing, heads: int, kv_heads: int, head: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """q, a layer of a pool's k and v, and the tail's."""
    q = draw(2, 5, heads, head, dtype=dtype)
    k, v = (draw(3, 2, kv_heads, 70, head, dtype=dtype)[:, 1] for _ in range(2))
    k_tail, v_tail = (draw(2, kv_heads, 21, head, dtype=dtype) for _ in range(2))
    return q, k, v, k_tail, v_tail


@pytest.mark.parametrize("heads", [(4, 1), (6, 2), (3, 3)], ids=str)
@pytest.mark.parametrize("head", [8, 20])
def test_prefix_and_tail(dtype: torch.dtype, heads: tuple[int, int], head: int) -> None:
    q, k, v, k_tail, v_tail = drawn(Drawing(head), *heads, head, dtype)
    lengths, tail = ints(33, 70), (k_tail, v_tail, ints(5, 21))
    expected = run(False, q, k, v, lengths, tail=tail)
    assert_near(run(True, q, k, v, lengths, tail=tail), expected, dtype)


@pytest.mark.parametrize("parts", [2, 4, 7])
@pytest.mark.parametrize("lengths", [(1, 2), (16, 64), (70, 31), (0, 17)], ids=str)
def test_any_number_of_parts_and_keys(parts: int, lengths: tuple[int, int]) -> None:
    q, k, v, k_tail, v_tail = drawn(Drawing(7), 4, 1, 16, torch.float32)
    tail = (k_tail, v_tail, ints(5, 6))
    expected = run(False, q, k, v, ints(*lengths), tail=tail)
    assert_near(run(True, q, k, v, ints(*lengths), parts, tail=tail), expected, torch.float32)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_state_token_sees_no_action(parts: int) -> None:
    q, k, v, k_tail, v_tail = drawn(Drawing(8), 4, 1, 8, torch.float32)
    lengths, tail = ints(20, 37), (k_tail, v_tail, ints(5, 5))
    expected = run(False, q, k, v, lengths, alone=1, tail=tail)
    ours = run(True, q, k, v, lengths, parts, alone=1, tail=tail)
    assert_near(ours, expected, torch.float32)
    k_tail[:, :, 1:] += 1
    other = run(True, q, k, v, lengths, parts, alone=1, tail=tail)
    assert torch.equal(other[:, 0], ours[:, 0])
    assert not torch.equal(other[:, 1], ours[:, 1])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("tailed", [False, True], ids=["prefix alone", "prefix and tail"])
def test_a_token_sees_so_many_keys(parts: int, tailed: bool) -> None:
    """Those of the tail come after the prefix's."""
    q, k, v, k_tail, v_tail = drawn(Drawing(13), 6, 2, 16, torch.float32)
    lengths, tail = ints(20, 37), (k_tail, v_tail, ints(5, 21)) if tailed else ()
    seen = torch.tensor([[3, 19, 20, 20, 1], [17, 37, 36, 37, 37]], dtype=torch.int32, device=DEVICE)
    if tailed:
        seen = seen + torch.arange(5, dtype=torch.int32, device=DEVICE)
    ours = run(True, q, k, v, lengths, parts, tail=tail, seen=seen)
    assert_near(ours, run(False, q, k, v, lengths, tail=tail, seen=seen), torch.float32)
    for b, t in ((0, 0), (1, 2)):
        keys, values = (
            torch.cat((pool[2 - b, :, : lengths[b]], after[b]), 1)[:, : int(seen[b, t])]
            for pool, after in ((k, k_tail), (v, v_tail))
        )
        weights = torch.softmax((q[b, t].unflatten(0, (2, 3)) @ keys.mT) / 4, dim=2)
        assert_near(ours[b, t], (weights @ values).flatten(), torch.float32)


def test_without_a_tail(dtype: torch.dtype) -> None:
    q, k, v, *_ = drawn(Drawing(9), 4, 1, 32, dtype)
    lengths = ints(70, 3)
    assert_near(run(True, q, k, v, lengths, 2), run(False, q, k, v, lengths), dtype)


def test_what_lies_beyond_the_lengths_is_not_read() -> None:
    q, k, v, k_tail, v_tail = drawn(Drawing(10), 4, 1, 8, torch.float32)
    lengths, tail = ints(20, 37), (k_tail, v_tail, ints(4, 9))
    before = run(True, q, k, v, lengths, 2, tail=tail)
    for keys in (k, v):
        keys[2, :, 20:] = float("nan")
        keys[1, :, 37:] = float("nan")
        keys[0] = float("nan")
    for keys in (k_tail, v_tail):
        keys[0, :, 4:] = float("nan")
        keys[1, :, 9:] = float("nan")
    assert torch.equal(run(True, q, k, v, lengths, 2, tail=tail), before)


def test_more_than_a_thousand_keys() -> None:
    draw = Drawing(11)
    q, k, v = draw(1, 1, 2, 16), draw(1, 1, 1500, 16), draw(1, 1, 1500, 16)
    out = poison(1, 1, 32)
    config, scratch = Config(16, 128, 16, split=2), Scratch.of(DEVICE, 1 << 12, 1)
    kernels.attend(q, k, v, ints(0), ints(1481), out, config=config, scratch=scratch)
    weights = torch.softmax((q[0].transpose(0, 1) @ k[0, :, :1481].mT) * 16**-0.5, dim=2)
    expected = (weights @ v[0, :, :1481]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out[0], expected, rtol=1e-4, atol=1e-5)
    assert q.device.type == DEVICE.type


def test_keys_are_not_cut_where_scratch_memory_is_too_small() -> None:
    q, k, v, *_ = drawn(Drawing(12), 4, 1, 16, torch.float32)
    out, slots, lengths = poison(2, 5, 64), ints(2, 1), ints(70, 9)
    kernels.attend(
        q, k, v, slots, lengths, out, config=Config(16, 16, 16, split=8), scratch=Scratch.of(DEVICE, 8, 1)
    )
    assert_near(out, run(False, q, k, v, lengths), torch.float32)


@pytest.mark.parametrize("heads", [(4, 1), (6, 2)], ids=str)
@pytest.mark.parametrize(
    ("parts", "lengths", "alone", "causal"),
    [
        (1, (33, 70), 1, False),
        (2, (33, 70), 0, False),
        (3, (0, 64), 1, False),
        (9, (70, 16), 0, False),
        (1, (33, 70), 0, True),
        (3, (0, 64), 0, True),
    ],
    ids=str,
)
def test_of_what_a_product_made(
    dtype: torch.dtype,
    heads: tuple[int, int],
    parts: int,
    lengths: tuple[int, int],
    alone: int,
    causal: bool,
) -> None:
    (many, few), head, tokens = heads, 24, 21
    draw = Drawing(parts)
    y = draw(2, tokens, (many + 2 * few) * head, dtype=dtype)
    k, v = (draw(3, 2, few, 72, head, dtype=dtype)[:, 1] for _ in range(2))
    for cache in (k, v):
        for slot, length in ((2, lengths[0]), (1, lengths[1])):
            cache[slot, :, length:] = float("nan")
    angles, made = draw(100, head // 2), []
    seen = ints(*lengths)[:, None] + ints(*range(1, tokens + 1)) if causal else None
    for kernel in (False, True):
        out, q = poison(2, tokens, many * head, dtype=dtype), poison(2, tokens, many, head, dtype=dtype)
        k_tail = poison(2, few, tokens, head, dtype=dtype)
        places = ints(2, 1), ints(*lengths)
        arguments = (y, angles.cos(), angles.sin(), q, k_tail, k, v, *places, out, alone, seen)
        if kernel:
            config, scratch = Config(32, 16, 16, split=2 * parts), Scratch.of(DEVICE, 1 << 20, 64)
            rotary.attend_rotary(*arguments, config=config, scratch=scratch)
            assert not scratch.counters.any()
        else:
            attention.attend_rotary(*arguments)
        made.append(out)
    assert_near(made[1], made[0], dtype)
