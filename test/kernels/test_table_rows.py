"""Rows of tables chosen by an index are to the bit the same rows given one for each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawing import DEVICE, Drawing, ints, poison
from norms import chosen_rows, norm_of

from vla_accel_ros.kernels.candidates import HOPPER
from vla_accel_ros.kernels.cuda import products
from vla_accel_ros.kernels.reference import flow, linear
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import flow as flow_kernels
from vla_accel_ros.kernels.triton import linear as linear_kernels
from vla_accel_ros.kernels.triton import project as project_kernels
from vla_accel_ros.kernels.triton.launch import Scratch

BATCH, TOKENS, WIDTH = 3, 5, 320
Run = Callable[..., None]


def of_reference(**named: Any) -> list[tuple[Run, Run, Run, dict[str, Any]]]:
    """The plain functions, then their kernels."""
    return [
        (linear.gated_up, linear.rotary_qkv, linear.project, {}),
        (linear_kernels.gated_up, linear_kernels.rotary_qkv, project_kernels.project, named),
    ]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for first, second in zip(one, other, strict=True):
        assert torch.isfinite(first).all() and torch.equal(first, second)


@pytest.mark.parametrize("kernels", [False, True])
def test_products_of_few_rows(dtype: torch.dtype, kernels: bool) -> None:
    config = {"config": Config(16, 16, 32, split=2)}
    gated_up, rotary_qkv, project, named = of_reference(**config)[kernels]
    check(gated_up, rotary_qkv, project, dtype, ints(6, 0, 6), named, Scratch.of(DEVICE, 1 << 16, 64))


def check(
    gated_up: Run, rotary_qkv: Run, project: Run, dtype: torch.dtype, at: torch.Tensor,
    named: dict[str, Any], scratch: Scratch | None,
) -> None:  # fmt: skip
    draw, columns, heads, head = Drawing(3), 192, 4, 32
    x, fed = (draw(BATCH, TOKENS, width, dtype=dtype) for width in (WIDTH, 1536))
    up, down = (
        draw(*shape, dtype=dtype, spread=shape[1] ** -0.5) for shape in ((2 * columns, WIDTH), (WIDTH, 1536))
    )
    qkv = draw((heads + 2) * head, WIDTH, dtype=dtype, spread=WIDTH**-0.5)
    tables = {name: chosen_rows(draw, at, width) for name, width in
              (("scale", WIDTH), ("up", 2 * columns), ("qkv", len(qkv)), ("gate", WIDTH))}  # fmt: skip
    angles = draw(TOKENS + 1, head // 2)
    more = {"scratch": scratch} if named and scratch is not None else {}
    results = []
    for own in (0, 1):
        rows: dict[str, Any] = {} if own else {"at": at}
        norm = norm_of(x, tables["scale"][1])  # of the rows that are normed now: they are there already
        gated, projected = poison(BATCH, TOKENS, columns, dtype=dtype), x.clone()
        gated_up(x, up, gated, norm, tables["up"][own], **rows, **named)
        q = poison(BATCH, TOKENS, heads, head, dtype=dtype)
        k, v = (poison(BATCH, 1, TOKENS, head, dtype=dtype) for _ in range(2))
        places = ints(0, 1, 0), q, k, v, ints(0, 1, 2), ints(0, 0, 0)
        rotary_qkv(x, qkv, angles.cos(), angles.sin(), *places, norm, tables["qkv"][own], **rows, **named)
        left = norm_of(x, tables["scale"][own], filled=False)
        project(fed, down, projected, tables["gate"][own], left, **rows, **named, **more)
        assert left.scaled is not None
        squares = left.squares.sum(0)[: BATCH * TOKENS]
        results.append([gated, q, k, v, projected, squares, left.scaled])
    same(*results)
    assert not torch.equal(tables["gate"][0][: len(at)], tables["gate"][1])  # so that the index matters


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("each", ["sequence", "action"])
def test_embedded_actions(dtype: torch.dtype, kernels: bool, each: str, kind: str) -> None:
    draw, horizon, size, width, state = Drawing(5), 4, 6, 40, kind == "pi0"
    at = ints(6, 0, 6) if each == "sequence" else ints(*(n % 7 for n in range(3, 3 + BATCH * horizon)))
    bias, scale = chosen_rows(draw, at, width), chosen_rows(draw, at, width)
    x, weight = draw(BATCH, horizon, size), draw(width, size)
    more = (draw(width, width, dtype=dtype, spread=width**-0.5), draw(width), draw(BATCH, width, dtype=dtype))
    results = []
    for own in (0, 1):
        out = poison(BATCH, horizon + state, width, dtype=dtype)
        norm = Norm.of(out, scaled=not state)._replace(scale=None if state else scale[own])
        given = x, weight, bias[own], out, *(more if state else (None, None, None)), norm
        rows: dict[str, Any] = {} if own else {"at": at}
        if kernels:
            scratch = Scratch.of(DEVICE, 1 << 14, 1)
            flow_kernels.embed_actions(*given, **rows, config=Config(16, 16, 16), scratch=scratch)
        else:
            flow.embed_actions(*given, **rows)
        results.append([out, norm.squares, *([] if norm.scaled is None else [norm.scaled])])
    same(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("split", [2, 4])
def test_products_of_kernels_cuda(split: int) -> None:
    few = {name: next(each for each in HOPPER[name] if name != "project" or each.split == split)
           for name in products.KINDS}  # fmt: skip

    def run(name: str) -> Run:
        kernel: Run = getattr(products, name)
        return lambda *given, **rows: kernel(*given, **rows, config=few[name])

    check(run("gated_up"), run("rotary_qkv"), run("project"), torch.bfloat16, ints(6, 0, 6), {}, None)
