"""triton/flow.py and triton/norm.py compute what their references do."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch
from drawing import DEVICE, Drawing, assert_near, ints, poison
from torch import Tensor

from vla_accel_ros.kernels.reference import flow, linear, norm
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import flow as kernels
from vla_accel_ros.kernels.triton import norm as norm_kernels
from vla_accel_ros.kernels.triton.launch import Scratch
from vla_accel_ros.models.flow.solver import AB2, rates

rows = pytest.mark.parametrize("tables", [1, 3], ids=["one time", "a time each"])
SMALL = Config(16, 16, 16)


@rows
@pytest.mark.parametrize("kind", ["pi0", "pi05", "smolvla"])
def test_embed_actions(dtype: torch.dtype, tables: int, kind: str) -> None:
    draw, batch, horizon, size, width = Drawing(0), 3, 7, 6, 40
    x, weight, bias = draw(batch, horizon, size), draw(width, size), draw(tables, width)
    more: tuple[Any, Any, Any] = (None, None, None)
    if kind != "pi05":
        state = draw(batch, width, dtype=dtype) if kind == "pi0" else None
        more = draw(width, width, dtype=dtype, spread=width**-0.5), draw(width), state
    expected, ours = (poison(batch, horizon + (kind == "pi0"), width, dtype=dtype) for _ in range(2))
    scale = draw(tables, width, spread=0.3) if kind == "pi05" else None
    norm, left = (Norm.of(expected, scaled=scale is not None)._replace(scale=scale) for _ in range(2))
    flow.embed_actions(x, weight, bias, expected, *more, norm)
    given = (*more, left)
    kernels.embed_actions(x, weight, bias, ours, *given, config=SMALL, scratch=Scratch.of(DEVICE, 1 << 14, 1))
    assert_near(ours, expected, dtype)
    rows = batch * ours.shape[1]
    assert_near(left.squares.sum(0)[:rows], norm.squares.sum(0)[:rows], dtype)
    if left.scaled is not None and norm.scaled is not None:
        assert_near(left.scaled, norm.scaled, dtype)


@rows
@pytest.mark.parametrize("modulated", [False, True])
def test_read_out(dtype: torch.dtype, tables: int, modulated: bool) -> None:
    draw, batch, horizon, size, width = Drawing(1), 3, 5, 6, 40
    hidden, weight = draw(batch, horizon + 1, width, dtype=dtype), draw(size, width)
    bias, scale = draw(tables, size), draw(tables, width) if modulated else None
    x = draw(batch, horizon, size)
    expected, ours, moved, update = x.clone(), x.clone(), torch.empty_like(x), poison(*x.shape)
    flow.read_out(hidden, weight, bias, expected, moved, scale, eps=0.5)
    kernels.read_out(hidden, weight, bias, ours, update, scale, eps=0.5, config=SMALL)
    assert_near(update, moved, torch.float32)
    assert_near(ours, expected, torch.float32)


@rows
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_read_out_of_a_guided_step(dtype: torch.dtype, tables: int, guided: bool, counted: bool) -> None:
    """Weights of 0, committed actions, and as many numbers in a magnitude as are asked for."""
    draw, batch, horizon, size, width, steps = Drawing(6), 3, 5, 6, 40, 4
    hidden, weight, step = draw(batch, horizon, width, dtype=dtype), draw(size, width), ints(3, 0, 2)
    bias, scale, x = draw(tables, size), draw(tables, width), draw(batch, horizon, size)
    weights, gains = draw(batch, horizon).abs() * (draw(batch, horizon) > 0), draw(batch, steps).abs()
    guide = flow.Guide(draw(batch, horizon, size), weights, gains, draw(steps), ints(0, 2, 0))
    guides = guide if guided else None
    made = []
    for run in (flow.read_out, partial(kernels.read_out, config=SMALL)):
        moving, update, values = x.clone(), poison(*x.shape), torch.zeros(batch, steps, horizon).to(DEVICE)
        magnitudes = flow.Magnitudes(values, ints(4, 6, 1)) if counted else None
        run(hidden, weight, bias, moving, update, scale, step, magnitudes, guides)
        made.append((moving, update, values))
    for ours, expected in zip(made[1], made[0], strict=True):
        assert_near(ours, expected, torch.float32)
    free = x.clone()
    kernels.read_out(hidden, weight, bias, free, poison(*x.shape), scale, config=SMALL)
    moved = made[1][0]
    if guided:
        assert torch.equal(moved[1, :2], x[1, :2])
        unheld = weights == 0.0
        unheld[1, :2] = False
        assert torch.equal(moved[unheld], free[unheld]) and unheld.any()
        assert not torch.equal(moved, free)
    else:
        assert torch.equal(moved, free)


@pytest.mark.parametrize("guided", [False, True])
def test_read_out_of_a_step_that_knows_the_one_before(dtype: torch.dtype, guided: bool) -> None:
    """What the first step finds there is of no account, and a free action is the same beside guided ones."""
    draw, batch, horizon, size, width, steps = Drawing(8), 3, 5, 6, 40, 3
    hidden, weight, bias = draw(batch, horizon, width, dtype=dtype), draw(size, width), draw(1, size)
    x, at = draw(batch, horizon, size), ints(2, 0, 1)
    weights = draw(batch, horizon).abs() * (draw(batch, horizon) > 0)
    guide = flow.Guide(draw(*x.shape), weights, draw(batch, steps).abs(), draw(steps), ints(0, 2, 0))
    table = torch.tensor(rates(AB2, steps), device=DEVICE)
    before, made = draw(*x.shape), []
    before[1] = float("nan")
    guides = guide if guided else None
    free = [x.clone(), before.clone()]
    for run in (flow.read_out, partial(kernels.read_out, config=SMALL)):
        moving, update, last = x.clone(), poison(*x.shape), before.clone()
        run(hidden, weight, bias, moving, update, None, at, None, guides, flow.History(last, table))
        made.append((moving, update, last))
    for ours, expected in zip(made[1], made[0], strict=True):
        assert_near(ours, expected, torch.float32)
    history = flow.History(free[1], table)
    kernels.read_out(
        hidden, weight, bias, free[0], poison(*x.shape), None, at, None, None, history, config=SMALL
    )
    assert torch.equal(free[1], made[1][2]), "guidance is not carried on"
    unheld = weights == 0.0
    unheld[1, :2] = False
    assert torch.equal(free[0][unheld], made[1][0][unheld]) and unheld.any()
    assert torch.equal(made[1][0][1, :2], x[1, :2]) == guided
    euler, own = x.clone(), poison(*x.shape)
    kernels.read_out(hidden, weight, bias, euler, own, None, at, config=SMALL)
    assert torch.equal(free[0][1], euler[1]), "the first step is Euler's"
    assert torch.equal(free[1], own)
    torch.testing.assert_close(free[0][0], (x + 1.5 * own - 0.5 * before)[0])


def test_embed_actions_with_a_time_for_each(dtype: torch.dtype, kind: str) -> None:
    """Tables of a row for each action are those of a row for each sequence, where all rows of one agree."""
    draw, batch, horizon, size, width = Drawing(7), 3, 7, 6, 40
    x, weight, bias = draw(batch, horizon, size), draw(width, size), draw(batch * horizon, width)
    scale = None if kind == "pi0" else draw(batch * horizon, width, spread=0.3)
    more = (draw(width, width, dtype=dtype, spread=width**-0.5), draw(width), draw(batch, width, dtype=dtype))
    given: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    if kind == "pi0":
        given = more
    scratch = Scratch.of(DEVICE, 1 << 14, 1)
    made = []
    for run in (flow.embed_actions, partial(kernels.embed_actions, config=SMALL, scratch=scratch)):
        out = poison(batch, horizon + (kind == "pi0"), width, dtype=dtype)
        norm = Norm.of(out, scaled=scale is not None)._replace(scale=scale)
        run(x, weight, bias, out, *given, norm)
        made.append((out, norm))
    (expected, left), (ours, right) = made
    assert_near(ours, expected, dtype)
    assert_near(right.squares.sum(0)[: len(bias)], left.squares.sum(0)[: len(bias)], dtype)
    if right.scaled is not None and left.scaled is not None:
        assert_near(right.scaled, left.scaled, dtype)
    for run in (flow.embed_actions, partial(kernels.embed_actions, config=SMALL, scratch=scratch)):
        out, again = (poison(*ours.shape, dtype=dtype) for _ in range(2))
        run(x, weight, bias[:batch], out, *given)
        run(x, weight, bias[:batch].repeat_interleave(horizon, dim=0), again, *given)
        assert torch.equal(out, again)


def test_norms(dtype: torch.dtype) -> None:
    draw, width = Drawing(2), 37
    x, weight, bias = draw(6, width, dtype=dtype), draw(width), draw(width)
    expected, ours = (poison(6, width, dtype=dtype) for _ in range(2))
    norm.rms_norm(x, weight, expected, 0.5)
    norm_kernels.rms_norm(x, weight, ours, 0.5)
    assert_near(ours, expected, dtype)
    y, gate = draw(6, width, dtype=dtype), draw(width)
    several = draw(3, 3, width).unbind(dim=1)  # of two rows each, which lie apart
    cases: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
        ((None, None), (weight, bias), {}),
        ((y, None), (weight, bias), {}),
        ((y, bias), (None, bias), {"eps": 0.1}),
        ((y, bias), (weight, None), {"gate": gate, "eps": 0.1, "computed": True}),
        ((y, None), (None, None), {"gate": gate}),
        ((y, None), several[:2], {"gate": several[2], "computed": True}),
        ((y, None), (weight, None), {"eps": 0.1, "centred": False}),
        ((None, None), (weight, bias), {"centred": False}),
    )
    for added, by, more in cases:
        left, right = x.clone(), x.clone()
        for add, rows, out in (
            (norm.add_layer_norm, left, expected),
            (norm_kernels.add_layer_norm, right, ours),
        ):
            cast(Any, add)(rows, *added, *by, out, **more)
        assert_near(ours, expected, dtype)
        assert_near(right, left, dtype)


@pytest.mark.parametrize("modulated", [False, True], ids=["plain", "modulated"])
def test_add_norm(dtype: torch.dtype, modulated: bool) -> None:
    draw, batch, tokens, width, layers = Drawing(5), 3, 4, 37, 2
    x, y = draw(batch, tokens, width, dtype=dtype), draw(2, batch, tokens, width, dtype=dtype)
    at, nothing = ints(4, 0, 4), [None] * 3
    # Layers of tables [steps, layers, W]: rows lie apart.
    tables = [draw(5, layers, width, spread=0.3)[:, 1] for _ in range(3)] if modulated else nothing
    gate, scale, shift = tables
    for added, normed in ((y, True), (None, True), (y[:1], False)):
        made = []
        for run in (norm.add_norm, norm_kernels.add_norm):
            rows, out = x.clone(), poison(batch, tokens, width, dtype=dtype)
            run(rows, added, out if normed else None, at, gate, scale, shift, eps=0.5)
            made.append((rows, out if normed else rows))
        for ours, expected in zip(made[1], made[0], strict=True):
            assert_near(ours, expected, dtype)


def test_activations(dtype: torch.dtype) -> None:
    draw, width = Drawing(3), 1030
    y, bias = draw(3, width, dtype=dtype), draw(width)
    expected, ours = y.clone(), y.clone()
    norm.bias_gelu(expected, bias)
    norm_kernels.bias_gelu(ours, bias)
    assert_near(ours, expected, dtype)
    x, weight, bias = (draw(*shape, dtype=dtype) for shape in ((3, 40), (1032, 40), (1032,)))
    expected, ours = (poison(3, 1032, dtype=dtype) for _ in range(2))
    norm.gelu_product(x, weight, bias, expected)
    norm_kernels.gelu_product(x, weight, bias, ours)
    assert_near(ours, expected, dtype)
    expected, ours = (poison(1, 3, width // 2, dtype=dtype) for _ in range(2))
    linear.glu(y[None], expected)
    norm_kernels.glu(y[None], ours)
    assert_near(ours, expected, dtype)


def test_place_qkv(dtype: torch.dtype) -> None:
    draw, batch, tokens, heads, kv_heads, head = Drawing(4), 2, 5, 3, 2, 12
    y, angles = draw(batch, tokens, (heads + 2 * kv_heads) * head, dtype=dtype), draw(20, head // 2)
    results = []
    for place in (linear.place_qkv, norm_kernels.place_qkv):
        q = poison(batch, tokens, heads, head, dtype=dtype)
        k, v = (torch.zeros(3, kv_heads, 9, head, dtype=dtype, device=DEVICE) for _ in range(2))
        place(y, angles.cos(), angles.sin(), ints(2, 11), q, k, v, ints(2, 0), ints(3, 0))
        results.append((q, k, v))
    for ours, references in zip(results[1], results[0], strict=True):
        assert_near(ours, references, dtype)
