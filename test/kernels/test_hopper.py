"""kernels/cuda compiles without a device, and on one of sm_90 computes what the references do, each time
alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawing import DEVICE, Drawing, assert_near, ints, poison
from norms import assert_norms_near, norm_of, tables_of

from vla_accel_ros.kernels.candidates import HOPPER
from vla_accel_ros.kernels.cuda import attention as attention_kernel
from vla_accel_ros.kernels.cuda import compiling, linear_layers, products
from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.reference import attention, linear
from vla_accel_ros.kernels.reference import norm as layers
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.tuning import Table, load_table
from vla_accel_ros.models.config import PI0, PI05
from vla_accel_ros.tools.tune import pieces

BF16 = torch.bfloat16
tables = pytest.mark.parametrize("tables", [0, 1, 2], ids=["plain", "one row", "a row each"])


def fill(rows: int) -> tuple[int, int]:
    """Sequences and tokens of so many rows."""
    return (2, rows // 2) if rows % 2 == 0 else (1, rows)


def twice(run: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """What it makes, which is the same both times."""
    first, second = run(), run()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    return first


def candidates(kernel: str) -> list[Config]:
    return list(HOPPER[kernel])


def macros_of_published_sizes() -> list[tuple[str, dict[str, int]]]:
    found: list[tuple[str, dict[str, int]]] = []
    for name, kind in products.KINDS.items():
        inners = (2048, 4096) if name == "project" else (1024,)
        for config, inner, rows in itertools.product(HOPPER[name], inners, (50, 200)):
            if products.shared_bytes(kind, config, inner, rows) <= compiling.SHARED_BYTES:
                found.append(("products", products.macros(kind, config, inner, rows)))
    found += [("attention", attention_kernel.macros(config, 56)) for config in HOPPER["attend"]]
    return found


def test_candidates_compile_without_a_device() -> None:
    made = {compiling.compiled(file, macros, "sm_90a") for file, macros in macros_of_published_sizes()[::6]}
    assert len(made) == len(macros_of_published_sizes()[::6])
    assert all(code[:4] == b"\x7fELF" for code in made)


def test_a_word_that_the_compiler_does_not_know_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"products.cu does not compile for sm_90a"):
        compiling.compiled("products", {"KIND": 0}, "sm_90a")


@pytest.mark.parametrize("kernel", sorted(products.KINDS))
def test_without_a_device_of_its_kind_nothing_is_taken(kernel: str) -> None:
    draw = Drawing()
    x, weight = draw(1, 4, 1024, dtype=BF16).cpu(), draw(4096, 1024, dtype=BF16).cpu()
    keys = draw(1, 1, 4, 256, dtype=BF16).cpu()
    rest = (None,) * 4 + (keys,)
    assert not any(products.takes(kernel, x, weight, *rest, config=config) for config in HOPPER[kernel])


@pytest.mark.gpu
@tables
@pytest.mark.parametrize("activation", linear.ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 13, 50, 51, 64, 100, 130, 200, 263])
@pytest.mark.parametrize("config", candidates("gated_up"), ids=str)
def test_gated_up(config: Config, rows: int, activation: str, tables: int) -> None:
    draw, (batch, tokens) = Drawing(rows), fill(rows)
    x, weight = draw(batch, tokens, 320, dtype=BF16), draw(2 * 192, 320, dtype=BF16, spread=320**-0.5)
    scale, bias = tables_of(draw, batch if tables == 2 else tables, 320, 2 * 192)
    expected, norm = poison(batch, tokens, 192, dtype=BF16), norm_of(x, scale)._replace(eps=0.5)
    linear.gated_up(x, weight, expected, norm, bias, None, activation)

    def run() -> tuple[torch.Tensor, ...]:
        ours = poison(batch, tokens, 192, dtype=BF16)
        arguments = x, weight, ours, norm, bias, None, activation
        assert products.takes("gated_up", *arguments, config=config)
        products.gated_up(*arguments, config=config)
        return (ours,)

    assert_near(twice(run)[0], expected, BF16)


@pytest.mark.gpu
@tables
@pytest.mark.parametrize("rows", [1, 13, 50, 51, 64, 100, 130, 200, 263])
@pytest.mark.parametrize("config", candidates("rotary_qkv"), ids=str)
def test_rotary_qkv(config: Config, rows: int, tables: int) -> None:
    draw, (batch, tokens), heads, kv_heads, head = Drawing(rows), fill(rows), 3, 2, 64
    x = draw(batch, tokens, 256, dtype=BF16)
    weight = draw((heads + 2 * kv_heads) * head, 256, dtype=BF16, spread=1 / 16)
    scale, bias = tables_of(draw, batch if tables == 2 else tables, 256, weight.shape[0])
    norm, angles = norm_of(x, scale), draw(rows + 30, head // 2)
    cos, sin = angles.cos(), angles.sin()
    places = ints(4, 9)[:batch], ints(3, 1)[:batch], ints(2, 0)[:batch]

    def run(kernel: Callable[..., None], **named: Any) -> tuple[torch.Tensor, ...]:
        q = poison(batch, tokens, heads, head, dtype=BF16)
        pool = torch.zeros(2, 4, 3, kv_heads, tokens + 5, head, dtype=BF16, device=DEVICE)
        k, v = pool[0][:, 1], pool[1][:, 2]
        at, slots, starts = places
        kernel(x, weight, cos, sin, at, q, k, v, slots, starts, norm, bias, **named)
        return q, pool

    references = run(linear.rotary_qkv)
    for ours, expected in zip(
        twice(lambda: run(products.rotary_qkv, config=config)), references, strict=True
    ):
        assert_near(ours, expected, BF16)
        assert torch.equal(ours == 0, expected == 0)  # nothing beside its place


@pytest.mark.gpu
@tables
@pytest.mark.parametrize("rows", [1, 13, 50, 51, 64, 100, 130, 200, 263])
@pytest.mark.parametrize("config", candidates("project"), ids=str)
def test_project(config: Config, rows: int, tables: int) -> None:
    draw, (batch, tokens), width = Drawing(rows), fill(rows), 1536
    a, weight = draw(batch, tokens, width, dtype=BF16), draw(192, width, dtype=BF16, spread=width**-0.5)
    gate, scale = tables_of(draw, batch if tables == 2 else tables, 192, 192)
    before = draw(batch, tokens, 192, dtype=BF16)
    expected, norm = before.clone(), norm_of(before, scale, filled=False)
    linear.project(a, weight, expected, gate, norm)
    left = norm_of(before, scale, filled=False)

    def run() -> tuple[torch.Tensor, ...]:
        ours = before.clone()
        assert products.takes("project", a, weight, ours, gate, left, config=config)
        products.project(a, weight, ours, gate, left, config=config)
        return ours, left.squares.sum(0)[:rows].clone()

    assert_near(twice(run)[0], expected, BF16)
    assert_norms_near(left, norm, rows, BF16)


@pytest.mark.gpu
def test_a_row_does_not_depend_on_how_many_there_are() -> None:
    """Of the published sizes: chunks that are denoised together have the bits of each alone."""
    draw, table = Drawing(7), load_table(DEVICE)
    x, gate = draw(4, 50, 1024, dtype=BF16), draw(1, 1024)
    wide, fed = draw(8192, 1024, dtype=BF16, spread=1 / 32), draw(4, 50, 4096, dtype=BF16)
    down = draw(1024, 4096, dtype=BF16, spread=1 / 64)

    def run(chunks: slice) -> tuple[torch.Tensor, ...]:
        few, norm = x[chunks].clone(), norm_of(x[chunks], None)
        gated = poison(*few.shape[:2], 4096, dtype=BF16)
        config = table.hopper["gated_up/64/4096/1024/bfloat16"]
        assert products.takes("gated_up", few, wide, gated, norm, None, config=config)
        products.gated_up(few, wide, gated, norm, config=config)
        left, config = norm_of(few, None, filled=False), table.hopper["project/64/1024/4096/bfloat16"]
        assert products.takes("project", fed[chunks], down, few, gate, left, config=config)
        products.project(fed[chunks].contiguous(), down, few, gate, left, config=config)
        return gated, few

    together = run(slice(0, 4))
    for chunk in range(4):
        for all_of_them, alone in zip(together, run(slice(chunk, chunk + 1)), strict=True):
            assert torch.equal(all_of_them[chunk], alone[0])
    assert all(torch.isfinite(tensor).all() and tensor.any() for tensor in together)


@pytest.mark.gpu
@pytest.mark.parametrize("config", candidates("attend"), ids=str)
@pytest.mark.parametrize(
    ("batch", "tokens", "keys", "alone"),
    [(1, 51, 532, 1), (1, 50, 276, 0), (3, 7, 33, 1), (2, 64, 5, 0), (1, 100, 1500, 1), (10, 50, 788, 0)],
)
def test_attend(config: Config, batch: int, tokens: int, keys: int, alone: int) -> None:
    draw, heads = Drawing(keys), 8
    q = draw(batch, tokens, heads, 256, dtype=BF16)
    pool = torch.full((2, batch + 2, 3, 1, keys + 40, 256), float("nan"), dtype=BF16, device=DEVICE)
    pool[..., :keys, :] = draw(2, batch + 2, 3, 1, keys, 256, dtype=BF16)
    k, v = pool[0][:, 1], pool[1][:, 1]
    k_tail, v_tail = (draw(batch, 1, tokens, 256, dtype=BF16) for _ in range(2))
    slots, lengths = ints(*range(1, batch + 1)), ints(*(max(1, keys - 7 * b) for b in range(batch)))
    tails = ints(*(max(1, tokens - b) for b in range(batch)))
    expected = poison(batch, tokens, heads * 256, dtype=BF16)
    attention.attend(
        q, k.nan_to_num(), v.nan_to_num(), slots, lengths, expected, k_tail, v_tail, tails, alone
    )

    def run() -> tuple[torch.Tensor, ...]:
        out = poison(batch, tokens, heads * 256, dtype=BF16)
        given = (q, k, v, slots, lengths, out, k_tail, v_tail, tails, alone)
        assert attention_kernel.takes(*given, config=config)
        attention_kernel.attend(*given, config=config)
        return (out,)

    assert_near(twice(run)[0], expected, BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [PI0, PI05], ids=["pi0", "pi05"])
def test_the_packaged_table_is_right_at_the_published_sizes_with_early_starts(config: Any) -> None:
    table = load_table(DEVICE)
    assert table.hopper and table.pdl
    triton = TritonOps(DEVICE, Table(table.gpu, table.entries, table.pdl))
    for ops in (TritonOps(DEVICE, table), triton):
        for name, error in pieces.errors(config, 1100, DEVICE, 1, ops):
            assert error < pieces.NEAR, name


LAYERS = [(1024, 9216), (1024, 3072), (1536, 1536), (1536, 6144), (3072, 1024), (6144, 1536), (256, 48)]
"""Inputs and outputs of linear layers."""
CLUSTERS = ((2, 64), (3, 39), (4, 30), (6, 16), (8, 15))


@pytest.mark.parametrize(("inner", "columns"), LAYERS)
@pytest.mark.parametrize("name", sorted(linear_layers.KINDS))
def test_blocks_of_a_linear_layer_run_at_once_and_compile(name: str, inner: int, columns: int) -> None:
    kind = linear_layers.KINDS[name]
    assert linear_layers.spread(kind, 50, columns, 192, 132, CLUSTERS) is None, (
        "64 rows would lie beyond its memory"
    )
    config = linear_layers.spread(kind, 50, columns, inner, 132, CLUSTERS)
    if config is None:
        assert kind == products.PROJECT and (columns % 32 or columns // 64 > 132)
        return
    clusters = columns // config.block_n
    assert clusters * config.split <= 132 and clusters <= {1: 132, **dict(CLUSTERS)}[config.split]
    macros = products.macros(kind, config, inner, 50, linear.GELU, linear=True)
    assert compiling.compiled("products", macros, "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 13, 32, 41, 64])
@pytest.mark.parametrize(("inner", "columns"), LAYERS)
@pytest.mark.parametrize(
    ("name", "biased"),
    [*((name, True) for name in linear_layers.KINDS), ("bias_product", False), ("add_product", False)],
)
def test_linear_layers(name: str, biased: bool, inner: int, columns: int, rows: int) -> None:
    draw = Drawing(rows)
    a, weight = draw(rows, inner, dtype=BF16), draw(columns, inner, dtype=BF16, spread=inner**-0.5)
    bias, gate = (draw(columns, dtype=BF16) if biased else None for _ in range(2))
    before = draw(rows, columns, dtype=BF16)
    more = (torch.empty_like(before), gate) if name == "add_product" else ()
    expected = before.clone()
    getattr(layers, name)(a, weight, bias, expected, *more)

    def run() -> tuple[torch.Tensor, ...]:
        ours = before.clone()
        arguments = a, weight, bias, ours, *more
        config = linear_layers.linear_config(name, *arguments, blocks=132)
        if config is None:
            assert name == "add_product" and (
                columns % 32 or columns // 64 > 132 or (rows, inner) == (64, 6144)
            )
            return (expected,)
        getattr(linear_layers, name)(*arguments, config=config)
        return (ours,)

    assert_near(twice(run)[0], expected, BF16)
