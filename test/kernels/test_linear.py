"""triton/linear.py computes what its reference does: odd shapes, several sequences, every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drawing import DEVICE, Drawing, assert_near, ints, poison
from norms import assert_norms_near, norm_of, tables_of

from vla_accel_ros.kernels.reference import linear
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import linear as kernels
from vla_accel_ros.kernels.triton import project as project_kernels
from vla_accel_ros.kernels.triton.launch import Scratch

modulated = pytest.mark.parametrize("tables", [0, 1, 2], ids=["plain", "one row", "a row each"])


@modulated
@pytest.mark.parametrize("head", [8, 24, 32])
@pytest.mark.parametrize("width", [40, 50], ids=["tiles", "rows at odd addresses"])
def test_rotary_qkv(dtype: torch.dtype, tables: int, head: int, width: int) -> None:
    draw, batch, tokens, heads, kv_heads, room = Drawing(head), 2, 7, 3, 2, 12
    x = draw(batch, tokens, width, dtype=dtype)
    weight = draw((heads + 2 * kv_heads) * head, width, dtype=dtype, spread=width**-0.5)
    scale, bias = tables_of(draw, tables, width, weight.shape[0])
    norm, angles = norm_of(x, scale)._replace(eps=0.5), draw(30, head // 2)
    cos, sin = angles.cos(), angles.sin()
    results = []
    for run in (linear.rotary_qkv, kernels.rotary_qkv):
        q = poison(batch, tokens, heads, head, dtype=dtype)
        # A layer of a pool [slots, layers, kv_heads, tokens, D]: not contiguous.
        pool = torch.zeros(4, 3, kv_heads, room, head, dtype=dtype, device=DEVICE)
        k, v = pool[:, 1], torch.zeros_like(pool)[:, 2]
        named: dict[str, Any] = {} if run is linear.rotary_qkv else {"config": Config(16, 16, 32)}
        run(x, weight, cos, sin, ints(4, 9), q, k, v, ints(3, 1), ints(2, 0), norm, bias, **named)
        results.append((q, k, v))
        assert pool[:, 0].count_nonzero() == pool[:, 2].count_nonzero() == 0
        assert k[3, :, :2].count_nonzero() == k[3, :, 9:].count_nonzero() == k[0].count_nonzero() == 0
    for ours, references in zip(results[1], results[0], strict=True):
        assert_near(ours, references, dtype)


@modulated
@pytest.mark.parametrize("activation", linear.ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 16, 32), (2, 19, 24, 50), (3, 5, 33, 64)], ids=str)
def test_gated_up(dtype: torch.dtype, tables: int, shape: tuple[int, int, int, int], activation: str) -> None:
    (batch, tokens, columns, width), draw = shape, Drawing(1)
    x = draw(batch, tokens, width, dtype=dtype)
    weight = draw(2 * columns, width, dtype=dtype, spread=width**-0.5)
    scale, bias = tables_of(draw, batch if tables == 2 else tables, width, 2 * columns)
    expected, ours = (poison(batch, tokens, columns, dtype=dtype) for _ in range(2))
    norm = norm_of(x, scale)._replace(eps=0.5)
    linear.gated_up(x, weight, expected, norm, bias, None, activation)
    kernels.gated_up(x, weight, ours, norm, bias, None, activation, config=Config(16, 16, 32))
    assert_near(ours, expected, dtype)


@pytest.mark.parametrize("tables", [0, 1, 3], ids=["plain", "one row", "a row each"])
@pytest.mark.parametrize("config", [Config(16, 16, 16), Config(32, 32, 32, split=3)], ids=["whole", "split"])
@pytest.mark.parametrize("sizes", [(48, 96), (31, 70), (72, 64)], ids=str)
def test_project(dtype: torch.dtype, tables: int, config: Config, sizes: tuple[int, int]) -> None:
    (columns, width), draw, batch, tokens = sizes, Drawing(2), 3, 7
    a, weight = draw(batch, tokens, width, dtype=dtype), draw(columns, width, dtype=dtype, spread=width**-0.5)
    gate, scale = tables_of(draw, tables, columns, columns)
    before, scratch = draw(batch, tokens, columns, dtype=dtype), Scratch.of(DEVICE, 1 << 16, 64)
    expected, ours = before.clone(), before.clone()
    norm, left = (norm_of(before, scale, filled=False) for _ in range(2))
    linear.project(a, weight, expected, gate, norm)
    project_kernels.project(a, weight, ours, gate, left, config=config, scratch=scratch)
    assert_near(ours, expected, dtype)
    assert_norms_near(left, norm, batch * tokens, dtype)
    assert not scratch.counters.any()
    again = before.clone()
    project_kernels.project(a, weight, again, gate, config=config, scratch=scratch)
    assert torch.equal(again, ours)


def test_project_is_whole_where_scratch_memory_is_too_small_to_split(dtype: torch.dtype) -> None:
    draw = Drawing(3)
    a, weight = draw(1, 4, 64, dtype=dtype), draw(16, 64, dtype=dtype, spread=0.125)
    expected = draw(1, 4, 16, dtype=dtype)
    ours = expected.clone()
    linear.project(a, weight, expected)
    project_kernels.project(
        a, weight, ours, config=Config(16, 16, 16, split=4), scratch=Scratch.of(DEVICE, 8, 1)
    )
    assert_near(ours, expected, dtype)
