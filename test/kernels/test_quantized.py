"""Quantised weights: near what they were made of, and multiplied by the kernels as by their references.

The interpreter rounds to fp8 wrongly at powers of two, so there rows are left in a wider dtype, unrounded.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drawing import CUDA, DEVICE, Drawing, assert_near, ints, poison
from torch import Tensor

from vla_accel_ros.kernels.reference import linear, quantized
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import linear as linear_kernels
from vla_accel_ros.kernels.triton import project as project_kernels
from vla_accel_ros.kernels.triton import quantized as kernels
from vla_accel_ros.kernels.triton import small_weights
from vla_accel_ros.kernels.triton.launch import Scratch
from vla_accel_ros.models.layers import fp4
from vla_accel_ros.models.layers.quantized import FP8, GROUP, INT4, INT8, NVFP4, Quantized
from vla_accel_ros.models.layers.quantized import quantized as quantize

KINDS = (FP8, INT8, INT4)
kinds = pytest.mark.parametrize("kind", KINDS)


def normed(x: Tensor) -> Norm:
    norm = Norm.of(x, scaled=False)
    norm.leave(x)
    return norm


@kinds
@pytest.mark.parametrize("width", [128, 50, 200])
@pytest.mark.parametrize("head", [16, 24])
def test_rotary_qkv(dtype: torch.dtype, kind: str, width: int, head: int) -> None:
    draw, batch, tokens, heads, kv_heads = Drawing(head), 2, 7, 3, 1
    x = draw(batch, tokens, width, dtype=dtype)
    weight = quantize(draw((heads + 2 * kv_heads) * head, width, spread=width**-0.5), kind)
    angles = draw(30, head // 2)
    results = []
    for run in (linear.rotary_qkv, linear_kernels.rotary_qkv):
        q = poison(batch, tokens, heads, head, dtype=dtype)
        k, v = (torch.zeros(2, kv_heads, tokens, head, dtype=dtype, device=DEVICE) for _ in range(2))
        named: dict[str, Any] = {} if run is linear.rotary_qkv else {"config": Config(16, 16, 32)}
        run(
            x, weight, angles.cos(), angles.sin(), ints(4, 9), q, k, v, ints(1, 0), ints(0, 0), normed(x),
            **named,
        )  # fmt: skip
        results.append((q, k, v))
    for ours, references in zip(results[1], results[0], strict=True):
        assert_near(ours, references, dtype)


@kinds
@pytest.mark.parametrize("shape", [(1, 1, 16, 32), (2, 19, 24, 300), (3, 5, 33, 64)], ids=str)
def test_gated_up(dtype: torch.dtype, kind: str, shape: tuple[int, int, int, int]) -> None:
    (batch, tokens, columns, width), draw = shape, Drawing(1)
    x = draw(batch, tokens, width, dtype=dtype)
    weight = quantize(draw(2 * columns, width, spread=width**-0.5), kind)
    expected, ours = (poison(batch, tokens, columns, dtype=dtype) for _ in range(2))
    linear.gated_up(x, weight, expected, normed(x))
    linear_kernels.gated_up(x, weight, ours, normed(x), config=Config(16, 16, 32))
    assert_near(ours, expected, dtype)


@kinds
@pytest.mark.parametrize("config", [Config(16, 16, 16), Config(32, 32, 32, split=3)], ids=["whole", "split"])
@pytest.mark.parametrize("sizes", [(48, 96), (31, 70), (40, 500)], ids=str)
def test_project(dtype: torch.dtype, kind: str, config: Config, sizes: tuple[int, int]) -> None:
    (columns, width), draw, batch, tokens = sizes, Drawing(2), 3, 7
    a, weight = draw(batch, tokens, width, dtype=dtype), quantize(draw(columns, width, spread=0.1), kind)
    gate, before = draw(1, columns, spread=0.3), draw(batch, tokens, columns, dtype=dtype)
    expected, ours, scratch = before.clone(), before.clone(), Scratch.of(DEVICE, 1 << 16, 64)
    linear.project(a, weight, expected, gate)
    project_kernels.project(a, weight, ours, gate, config=config, scratch=scratch)
    assert_near(ours, expected, dtype)
    assert not scratch.counters.any()


def places(rows: int, width: int) -> tuple[Rows, Rows]:
    """For the reference and the kernel."""
    dtype = torch.float8_e4m3fn if CUDA else torch.float32
    made = [Rows(poison(rows, width).to(dtype), poison(rows, 1)) for _ in range(2)]
    return made[0], made[1]


def assert_rows_near(ours: Rows, expected: Rows, dtype: torch.dtype) -> None:
    """Values of fp8 may be one rounding apart where the unrounded ones hardly are."""
    assert_near(ours.scale, expected.scale, dtype)
    error = (ours.values.float() - expected.values.float()).norm() / expected.values.float().norm()
    assert error <= (6e-3 if CUDA else 4e-3)
    assert ours.values.float().abs().amax(1).sub(448).abs().max() < 1e-2


def product(draw: Drawing, rows: int, columns: int, dtype: torch.dtype) -> Product:
    """Of numbers about 1 with their scales."""
    scales = draw(rows, 1).abs() + 0.1, draw(columns).abs() + 0.1
    return Product(draw(rows, columns, dtype=dtype), *scales)


@pytest.mark.parametrize("width", [32, 50, 1152])
@pytest.mark.parametrize("added", [False, True])
def test_norms_leave_rows(dtype: torch.dtype, width: int, added: bool) -> None:
    draw = Drawing(3)
    x, y = draw(5, width, dtype=dtype), product(draw, 5, width, dtype) if added else None
    weight, bias, y_bias = (draw(width, spread=0.3, dtype=dtype) for _ in range(3))
    for name, given in (("rms_norm_rows", (weight.float(),)), ("layer_norm_rows", (weight, bias))):
        expected, ours = places(5, width)
        a, b = x.clone(), x.clone()
        between = (y,) if name == "rms_norm_rows" else (y, y_bias)
        getattr(quantized, name)(a, *between, *given, expected)
        getattr(kernels, name)(b, *between, *given, ours)
        torch.testing.assert_close(a, b)
        assert torch.equal(a, x) != added
        assert_rows_near(ours, expected, dtype)


def test_a_layer_norm_takes_exact_products_too(dtype: torch.dtype) -> None:
    draw, (expected, ours) = Drawing(10), places(5, 48)
    x, y = draw(5, 48, dtype=dtype), draw(5, 48, dtype=dtype)
    weight, bias = draw(48), draw(48)
    quantized.layer_norm_rows(x.clone(), y, None, weight, bias, expected)
    kernels.layer_norm_rows(x, y, None, weight, bias, ours)
    assert_rows_near(ours, expected, dtype)


@pytest.mark.parametrize("width", [16, 72, 2052])
def test_activations_leave_rows(dtype: torch.dtype, width: int) -> None:
    draw = Drawing(4)
    y, bias = product(draw, 6, 2 * width, dtype), draw(width, dtype=dtype)
    expected, ours = places(6, width)
    quantized.glu_rows(y, expected)
    kernels.glu_rows(y, ours)
    assert_rows_near(ours, expected, dtype)
    y = product(draw, 6, width, dtype)
    expected, ours = places(6, width)
    quantized.gelu_rows(y, bias, expected)
    kernels.gelu_rows(y, bias, ours)
    assert_rows_near(ours, expected, dtype)


def test_a_row_of_zeros_stays_one() -> None:
    one, zeros = torch.ones(1, 1, device=DEVICE), torch.zeros(1, 40, device=DEVICE)
    for leave in (quantized.glu_rows, kernels.glu_rows):
        out = places(1, 20)[0]
        leave(Product(zeros, one, zeros[0] + 1), out)
        assert out.values.float().count_nonzero() == 0
        assert torch.isfinite(out.scale).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 33, 532, 544])
@pytest.mark.parametrize("sizes", [(2560, 2048), (1152, 4304), (48, 16)], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_fp8_rows_are_cublas(rows: int, sizes: tuple[int, int], biased: bool) -> None:
    (columns, width), draw = sizes, Drawing(5)
    weight = quantize(draw(columns, width, spread=width**-0.5), FP8)
    bias = draw(columns, dtype=torch.bfloat16) if biased else None
    a = Rows.place(rows, width, DEVICE)
    a.leave(draw(rows, width))
    expected, ours = (poison(rows, columns, dtype=torch.bfloat16) for _ in range(2))
    quantized.multiply_rows(a, weight, expected, bias)
    kernels.multiply_rows(a, weight, ours, bias)
    assert_near(ours, expected, torch.bfloat16)
    kernels.multiply_unscaled(a, weight, ours)
    quantized.multiply_rows(a, weight, expected)
    assert_near(Product(ours, a.scale, weight.scale).float(), expected, torch.bfloat16)


@pytest.mark.parametrize(("kind", "most"), [(FP8, 0.03), (INT8, 0.01), (INT4, 0.13)])
def test_a_quantised_matrix_is_near_and_small(kind: str, most: float) -> None:
    weight = Drawing(6)(64, 512, spread=0.02)
    weight[3] *= 100  # a channel of its own scale
    weight[5] = 0
    small = quantize(weight, kind)
    for row, made in zip(weight, small.dequantized(), strict=True):
        assert (made - row).norm() <= most * row.norm()
    assert small.shape == weight.shape
    bits = 8 * small.nbytes / weight.numel()
    assert bits < (4.6 if kind == INT4 else 8.1)
    last = small.rows(60)
    assert torch.equal(last.dequantized(), small.dequantized()[60:])
    assert last.values.data_ptr() > small.values.data_ptr()


def test_int4_is_packed_as_it_says() -> None:
    values = torch.arange(-7, 8).repeat(30)[: GROUP + 20].float()[None]
    small: Quantized = quantize(values, INT4)
    assert small.values.shape == (1, GROUP) and small.scale.shape == (1, 2)
    assert torch.allclose(small.dequantized(), values, atol=1e-5)
    assert int(small.values[0, 3]) == int(values[0, 3] + 8) | int(values[0, 3 + GROUP // 2] + 8) << 4


def test_a_kind_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'int2'"):
        quantize(torch.ones(2, 2), "int2")


@kinds
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("sizes", [(1, 48, 96), (5, 31, 70), (33, 40, 300)], ids=str)
def test_few_rows_are_multiplied(
    dtype: torch.dtype, kind: str, add: bool, sizes: tuple[int, int, int]
) -> None:
    (rows, columns, width), draw = sizes, Drawing(7)
    a, weight = draw(rows, width, dtype=dtype), quantize(draw(columns, width, spread=width**-0.5), kind)
    expected = draw(rows, columns, dtype=dtype) if add else poison(rows, columns, dtype=dtype)
    ours = expected.clone()
    quantized.multiply(a, weight, expected, add)
    small_weights.multiply(a, weight, ours, add)
    assert_near(ours, expected, dtype)


def fp4_by_hand(rows: Tensor) -> Tensor:
    """Every number the nearest of the sixteen times its group's scale, by trying all of them."""
    top = rows.abs().amax(1)[:, None] / (448 * 6)
    groups = (rows / top).unflatten(1, (-1, 16))
    scales = (groups.abs().amax(2, keepdim=True) / 6).to(torch.float8_e4m3fn).float()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=rows.device)
    table = torch.cat((table, -table))
    nearest = (groups[..., None] - table * scales[..., None]).abs().argmin(-1)
    return (table[nearest] * scales).flatten(1) * top


def test_fp4_rows_are_the_nearest_numbers_in_the_tiles_of_cublas() -> None:
    rows = Drawing(5)(300, 320) * Drawing(6)(300, 1)
    rows[7] = 0.0
    rows[8, 16:48] = 0.0
    values, groups, scale = fp4.rows_in_fp4(rows)
    made = fp4.from_fp4(values, groups, scale)
    torch.testing.assert_close(made, fp4_by_hand(rows).nan_to_num())
    scales, flat = fp4.untiled(groups, 300, 20), groups.view(torch.uint8).flatten()
    for row, group in ((0, 0), (31, 3), (32, 4), (127, 19), (128, 0), (299, 19)):
        tile = row // 128 * 5 + group // 4  # section 3.1.4 of cuBLAS' manual
        offset = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
        assert flat[offset] == scales[row, group].view(torch.uint8)


def test_fp4_ties_go_to_even_codes() -> None:
    ties = torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -2.5, -5.0, -6.0] + [0.0] * 4])
    even = torch.tensor([[0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 0.0, -2.0, -4.0, -6.0] + [0.0] * 4])
    assert torch.equal(fp4.from_fp4(*fp4.rows_in_fp4(ties * 448)), even * 448)


def test_fp4_weights_are_made_in_blocks_of_rows_and_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Drawing(7)(640, 128)
    whole = quantize(weight, NVFP4)
    monkeypatch.setattr("vla_accel_ros.models.layers.quantized.BLOCK", 128 * 200)
    made = quantize(weight, NVFP4)
    for part in (made, whole):
        assert torch.equal(part.dequantized(), fp4.from_fp4(*fp4.rows_in_fp4(weight)))
        assert torch.equal(part.rows(-200).dequantized(), part.dequantized()[-200:])
    assert made.nbytes == whole.nbytes == 640 * (64 + 8 + 4)


def test_passes_leave_fp4_rows(dtype: torch.dtype) -> None:
    draw, width = Drawing(8), 192
    x, weight = draw(140, width, dtype=dtype), draw(width, spread=0.3)
    y = product(draw, 140, 2 * width, dtype)
    for run in ("rms_norm_rows", "glu_rows"):
        results = []
        for functions in (quantized, kernels):
            out = Rows.within(poison(140, width, dtype=dtype), NVFP4)
            assert out.groups is not None
            groups = out.groups if CUDA else out.groups.float()  # which are then not rounded
            out = Rows(out.values, out.scale, groups)
            getattr(functions, run)(*((x.clone(), None, weight) if run == "rms_norm_rows" else (y,)), out)
            results.append((out.float(), out))
        (made, ours), (expected, reference) = results[1], results[0]
        torch.testing.assert_close(ours.groups.float(), reference.groups.float(), rtol=2e-3, atol=1e-3)
        assert (ours.values == reference.values).float().mean() > 0.995
        assert (made - expected).norm() < 0.02 * expected.norm()


def test_fp4_products_are_those_of_the_numbers() -> None:
    draw = Drawing(9)
    rows, weight = Rows.within(torch.zeros(5, 64), NVFP4), quantize(draw(128, 64), NVFP4)
    rows.leave(draw(5, 64))
    out, unscaled = torch.empty(5, 128), torch.empty(5, 128)
    quantized.multiply_rows(rows, weight, out)
    quantized.multiply_unscaled(rows, weight, unscaled)
    exact = rows.float() @ weight.dequantized().T
    torch.testing.assert_close(out, exact)
    torch.testing.assert_close(Product(unscaled, rows.scale, weight.scale).float(), exact)
