"""Products of int8 rows: exact sums, kernels as their references, smoothing of columns."""

from __future__ import annotations

import pytest
import torch
from drawing import DEVICE, Drawing, assert_near, ints, poison
from torch import Tensor

from vla_accel_ros.kernels.candidates import ROWS
from vla_accel_ros.kernels.reference import int8
from vla_accel_ros.kernels.reference.int8 import place_rows
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import int8 as kernels
from vla_accel_ros.models.layers.quantized import INT8_MAX, W8A8, Quantized, smoothing
from vla_accel_ros.models.layers.quantized import quantized as quantize

SIZES = [(1, 16, 32), (19, 24, 300), (50, 33, 64), (70, 40, 129)]
CONFIG = Config(16, 16, 32)


def rows_of(x: Tensor, by: Tensor | None = None) -> Rows:
    out = place_rows(x.shape[0], x.shape[1], x.device)
    int8.quantize(x, by, out)
    return out


def drawn(sizes: tuple[int, int, int], seed: int = 1) -> tuple[Rows, Quantized]:
    (count, columns, width), draw = sizes, Drawing(seed)
    return rows_of(draw(count, width)), quantize(draw(columns, width, spread=width**-0.5), W8A8)


def test_sums_are_whole_numbers_however_long() -> None:
    """2^24 + 1 is the first whole number that float32 does not hold."""
    width = 4096
    a = Rows(torch.full((1, width), 127, dtype=torch.int8), torch.ones(1, 1))
    values = torch.full((2, width), 127, dtype=torch.int8)
    values[1, 0] = 126
    weight, out = Quantized(W8A8, values, torch.ones(2), width), torch.zeros(1, 2, dtype=torch.float64)
    made = int8._product(a, weight)
    assert made[0, 0] == torch.tensor(width * 127.0**2) and made.dtype == torch.float32
    narrow = (
        Rows(a.values[:, :999], a.scale),
        Quantized(W8A8, values[:, :999].contiguous(), weight.scale, 999),
    )
    int8.multiply(*narrow, out)
    assert out.tolist() == [[999 * 127**2, 999 * 127**2 - 127]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("finish", ["none", "add", "gelu"])
def test_multiply(dtype: torch.dtype, sizes: tuple[int, int, int], biased: bool, finish: str) -> None:
    (a, weight), draw = drawn(sizes), Drawing(2)
    bias = draw(sizes[1], dtype=dtype) if biased else None
    expected = draw(sizes[0], sizes[1], dtype=dtype)
    if finish != "add":
        expected = torch.full_like(expected, float("nan"))
    ours = expected.clone()
    int8.multiply(a, weight, expected, bias, finish)
    kernels.multiply(a, weight, ours, bias, finish, config=CONFIG)
    assert_near(ours, expected, dtype)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_gated(dtype: torch.dtype, sizes: tuple[int, int, int], activation: str) -> None:
    count, columns, width = sizes
    a, weight = drawn((count, 2 * columns, width), 3)
    expected, ours = poison(count, columns, dtype=dtype), poison(count, columns, dtype=dtype)
    int8.gated(a, weight, expected, activation)
    kernels.gated(a, weight, ours, activation, config=CONFIG)
    assert_near(ours, expected, dtype)


@pytest.mark.parametrize("config", ROWS, ids=str)
def test_tiles_that_are_timed_compute_the_same(config: Config) -> None:
    """Of rows, columns and an inner dimension that they do not divide."""
    (a, weight), draw = drawn((70, 48, 300)), Drawing(8)
    for finish, kernel, reference in (
        ("add", kernels.multiply, int8.multiply),
        ("gelu", kernels.gated, int8.gated),
    ):
        columns, more = (48, (None, "add")) if finish == "add" else (24, ("gelu",))
        expected = draw(70, columns, dtype=torch.float32)
        ours = expected.clone()
        reference(a, weight, expected, *more)
        kernel(a, weight, ours, *more, config=config)
        assert_near(ours, expected, torch.float32)


def assert_rows_alike(ours: Rows, expected: Rows) -> None:
    """Roundings of what lies between two numbers may differ, by one, in few places."""
    torch.testing.assert_close(ours.scale, expected.scale, rtol=1e-5, atol=0)
    apart = (ours.values.int() - expected.values.int()).abs()
    assert apart.max() <= 1 and (apart > 0).float().mean() < 0.01
    assert (expected.values.int().abs().amax(1) == INT8_MAX).all()


@pytest.mark.parametrize("width", [32, 50, 1152])
@pytest.mark.parametrize("exact", [False, True])
def test_norms_leave_rows(dtype: torch.dtype, width: int, exact: bool) -> None:
    draw = Drawing(4)
    x, factor, bias = draw(5, width, dtype=dtype), draw(width), draw(width, spread=0.3)
    given = {"rms_norm": (factor,), "layer_norm": (factor, bias)}
    for name, factors in given.items():
        made: list[Rows | Tensor] = [
            poison(5, width, dtype=dtype) if exact else place_rows(5, width, DEVICE) for _ in "ab"
        ]
        getattr(int8, name)(x, *factors, made[0])
        getattr(kernels, name)(x, *factors, made[1])
        compare(made[1], made[0], dtype)


def compare(ours: Rows | Tensor, expected: Rows | Tensor, dtype: torch.dtype) -> None:
    if isinstance(ours, Rows) and isinstance(expected, Rows):
        assert_rows_alike(ours, expected)
    else:
        assert isinstance(ours, Tensor) and isinstance(expected, Tensor)
        assert_near(ours, expected, dtype)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("leaves", ["rows", "exact", "nothing"])
def test_add_norm(dtype: torch.dtype, gated: bool, leaves: str) -> None:
    draw, (batch, tokens, width), at = Drawing(5), (3, 4, 50), ints(1, 0, 1)
    x, y, by = draw(batch, tokens, width, dtype=dtype), draw(batch, tokens, width, dtype=dtype), draw(width)
    tables = [draw(2, 3, width)[:, 1] for _ in range(3)] if gated else [None, None, None]
    found = []
    for run in (int8.add_norm, kernels.add_norm):
        own: Rows | Tensor | None = None
        if leaves != "nothing":
            exact = poison(batch * tokens, width, dtype=dtype)
            own = exact if leaves == "exact" else place_rows(batch * tokens, width, DEVICE)
        residual = x.clone()
        run(residual, y, by, own, at, *tables)
        found.append((residual, own))
    (expected, rows), (ours, made) = found
    assert_near(ours, expected, dtype)
    assert not torch.equal(ours, x)
    if rows is not None and made is not None:
        compare(made, rows, dtype)


@pytest.mark.parametrize("smooth", [False, True])
def test_quantize(dtype: torch.dtype, smooth: bool) -> None:
    draw = Drawing(6)
    x, by = draw(7, 70, dtype=dtype), draw(70).abs() if smooth else None
    expected, ours = (place_rows(7, 70, DEVICE) for _ in "ab")
    int8.quantize(x, by, expected)
    kernels.quantize(x, by, ours)
    assert_rows_alike(ours, expected)
    wide = x.float() if by is None else x.float() * by
    near = expected.values.float() * expected.scale
    assert ((near - wide).abs() <= 0.501 * expected.scale).all()


def test_a_row_of_zeros_stays_one() -> None:
    for run in (int8.quantize, kernels.quantize):
        out = place_rows(2, 40, DEVICE)
        run(torch.zeros(2, 40, device=DEVICE), None, out)
        assert out.values.float().count_nonzero() == 0 and torch.isfinite(out.scale).all()


def test_rows_do_not_know_each_other() -> None:
    a, weight = drawn((9, 24, 300))
    together, alone = poison(9, 24), poison(1, 24)
    for run in (int8.multiply, kernels.multiply):
        run(a, weight, together)
        run(Rows(a.values[4:5], a.scale[4:5]), weight, alone)
        assert torch.equal(together[4:5], alone)


def test_smoothing_takes_load_off_columns_with_outliers() -> None:
    draw = Drawing(7)
    x, weight = draw(64, 512), draw(96, 512, spread=0.05)
    x[:, [3, 100]] *= 60.0
    x[:, 7] = 0.0
    expected, errors = x.double() @ weight.double().T, []
    by = smoothing(x.abs().amax(0), weight, 0.5)
    assert torch.isfinite(by).all() and by[7] == 1.0 and by[3] < 0.3 * by.median()
    for factors in (None, by):
        small, made = quantize(weight, W8A8, factors), poison(64, 96)
        int8.multiply(rows_of(x, factors), small, made)
        errors.append(float((made - expected).norm() / expected.norm()))
        assert (small.dequantized() - weight).norm() < 0.05 * weight.norm()
    assert errors[1] < 0.4 * errors[0] < 0.05
