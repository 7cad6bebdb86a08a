"""Chooses the fastest launch settings of each kernel, alone and within whole layers.

Candidates are data (candidates.py); one that does not fit the device, or whose result differs from the
reference, is skipped. Each is timed in a chain of launches, each with another layer's weights. Some choices
are made by the time of whole layers, or of a product with its next kernel. A launch loads its weights while
the kernel before it computes, if both fit on a multiprocessor, so the fastest kernel alone may not be the
fastest in company.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from vla_accel_ros.kernels import ops as kernel_ops
from vla_accel_ros.kernels.candidates import (
    CANDIDATES,
    ENCODER,
    HOPPER,
    PARTS,
    PREFIX_ATTENTION,
    SMALL_WEIGHTS,
    STAGGERED,
    STAGGERED_ATTENTION,
    rows_candidates,
)
from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.ops import Ops, TritonOps, parts_shape
from vla_accel_ros.kernels.shapes import WAYS, Config, Shape
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.quantized import W8A8
from vla_accel_ros.tools.tune.pieces import NEAR, Piece, chain_us, error, layer_us, pieces
from vla_accel_ros.tools.tune.row_pieces import Product, products
from vla_accel_ros.tools.tune.steps import Gain, Step, Tuning
from vla_accel_ros.tools.tune.wide_pieces import down_us, encoder, prefix_attention, staggered_attention

VIEWS = 2
LAYER = "a layer of a denoising step"
ROUNDS = 2
"""How often each kernel's choice is repeated in company of the others."""


def steps(
    config: PiConfig,
    device: torch.device,
    batches: tuple[int, ...],
    tuning: Tuning,
    ways: tuple[str, ...] = WAYS,
) -> Iterator[tuple[str, Step]]:
    """Yield the steps of a tuning: each kernel at the sizes of `config`, then the choices by whole layers.

    config: a model whose norms are modulated, which is the most work. ways: the kinds of kernels to time;
    fewer than all are compared with the table in use.
    """
    table, say = tuning.table, tuning.say
    device_takes = compiling.available() and torch.cuda.get_device_capability(device) == (9, 0)
    hopper = device_takes and "cuda" in ways
    keys = VIEWS * config.vision.tokens + 20
    for batch in batches:
        for piece in pieces(config, keys, device, batch):
            if piece.name != "attend" or batch == batches[0]:  # one entry serves all batches
                few = _of(HOPPER.get(piece.kernel, ()), ways) if hopper and batch == 1 else ()
                candidates = _of(CANDIDATES[piece.name], ways)
                yield f"{piece.name}, {batch}", partial(_choose, tuning, piece, candidates, few, device)
    for views in (1, VIEWS, 3):
        if hopper:
            for piece in encoder(config, views, device):
                tiles = ENCODER[piece.kernel]
                yield f"{piece.name}, {views} views", partial(_choose_tiles, tuning, piece, tiles, device)
        tokens = views * config.vision.tokens + 32
        yield f"down, {views} views", partial(parts, table, config, tokens, device, say)
        piece, candidates = prefix_attention(config, tokens, device), _of(PREFIX_ATTENTION, ways)
        yield f"prefix attention, {views} views", partial(_choose, tuning, piece, candidates, (), device)
    staggered = staggered_attention(config, keys, STAGGERED, device)
    few = HOPPER[staggered.kernel] if hopper else ()
    candidates = _of(STAGGERED_ATTENTION, ways)
    yield "staggered attention", partial(_choose, tuning, staggered, candidates, few, device)

    def early_starts() -> None:
        table.pdl = pdl_helps(table, config, keys, device, batches[0], say)

    yield "early starts", early_starts
    if hopper:
        yield "in company", partial(together, table, config, device, say)

    def whole_layers() -> Gain:
        compared = (TritonOps(device, entries) for entries in (tuning.used, table))
        return Gain(*(layer_us(config, keys, device, batches[0], ops) for ops in compared))

    yield LAYER, whole_layers


def starting_table(table: Table, ways: tuple[str, ...], used: Table, only_weights: bool = False) -> Table:
    """Return `table` as a tuning begins with it: empty, or with the entries of the table in use for fewer
    ways than all or --only-weights. Entries of kernels/cuda are left out if that way is timed."""
    if only_weights:
        table.entries, table.hopper, table.pdl = dict(used.entries), dict(used.hopper), used.pdl
    elif set(ways) < set(WAYS):
        table.entries = dict(used.entries)
        table.hopper = {} if "cuda" in ways else dict(used.hopper)
    return table


def _choose(
    tuning: Tuning,
    piece: Piece,
    candidates: tuple[Config, ...],
    few: tuple[Config, ...],
    device: torch.device,
) -> Gain | None:
    """Enter the fastest of `candidates`, and of `few` (kernels/cuda) if it is faster; return the gain."""
    before_us = _used_us(tuning.used, piece, device, pdl=bool(few))
    us = _best(tuning.table, piece, candidates, device, tuning.say)
    us = min(us, _hopper(tuning.table, piece, few, us, device, tuning.say))
    return Gain(before_us, us) if math.isfinite(us) else None


def _choose_tiles(tuning: Tuning, piece: Piece, tiles: tuple[Config, ...], device: torch.device) -> Gain:
    """Enter the fastest of `tiles` if it is faster than cuBLAS; return the gain."""
    blas_us = _blas(tuning.table, piece, device)
    before_us = _used_us(tuning.used, piece, device, pdl=True)
    return Gain(before_us, min(blas_us, _hopper(tuning.table, piece, tiles, blas_us, device, tuning.say)))


def _used_us(used: Table, piece: Piece, device: torch.device, pdl: bool) -> float:
    """Return microseconds with the table in use.

    pdl: as for the candidates in comparison; only those for Hopper start before the previous kernel has
    ended.
    """
    with torch.inference_mode():
        ops = TritonOps(device, dataclasses.replace(used, pdl=pdl))
        return chain_us(_launch(ops, piece), piece, device, runs=20)


def small_steps(
    config: PiConfig, device: torch.device, kind: str, tuning: Tuning
) -> Iterator[tuple[str, Step]]:
    """Yield the steps for each product of a denoising step, with weights quantised to `kind`."""
    for piece in pieces(config, VIEWS * config.vision.tokens + 20, device, 1, weights=kind):
        splits = piece.kernel == "project"
        if splits or piece.kernel in ("rotary_qkv", "gated_up"):
            candidates = tuple(c for c in SMALL_WEIGHTS if splits or c.split == 1)
            yield f"{piece.name}, {kind}", partial(_choose, tuning, piece, candidates, (), device)


def rows_steps(
    config: PiConfig, device: torch.device, batches: tuple[int, ...], tuning: Tuning
) -> Iterator[tuple[str, Step]]:
    """Yield the steps for each product of int8 rows."""

    def choose(product: Product) -> Gain | None:
        piece = product.piece(device)
        return _choose(tuning, piece, rows_candidates(product.rows), (), device)

    for product in products(config, (VIEWS, 1, 3), batches):
        yield f"{product.name}, {W8A8} rows", partial(choose, product)


def _best(
    table: Table,
    piece: Piece,
    candidates: tuple[Config, ...],
    device: torch.device,
    say: Callable[[str], None],
) -> float:
    """Enter the fastest of the candidates and the previous entry; return its microseconds.

    inf if there is nothing to time. Raises RuntimeError if none of them computes the right result.
    """
    shape = shape_of(piece)
    times_us: dict[Config, float] = {}
    previous = table.entries.get(shape.key)
    for candidate in (*candidates, *([] if previous is None else [previous])):
        table.entries[shape.key] = candidate
        us = _time(table, piece, device)
        if us is not None:
            times_us[candidate] = us
    if not candidates and previous is None:  # its way was not requested
        return math.inf
    if not times_us:
        raise RuntimeError(f"no way to launch {piece.name} is right on this device; please report it.")
    best = min(times_us, key=lambda candidate: times_us[candidate])
    table.entries[shape.key] = best
    worst = max(times_us.values())
    say(f"{shape.key:44} {times_us[best]:7.2f} us of up to {worst:7.2f}  {short(best)}")
    return times_us[best]


def _hopper(
    table: Table,
    piece: Piece,
    candidates: tuple[Config, ...],
    other: float,
    device: torch.device,
    say: Callable[[str], None],
) -> float:
    """Enter the fastest kernels/cuda candidate if it takes less than `other` microseconds; return its time,
    else inf."""
    key, times_us = shape_of(piece).key, {}
    for candidate in candidates:
        table.hopper[key] = candidate
        ops = TritonOps(device, dataclasses.replace(table, pdl=True))
        if not ops.hopper[piece.kernel].takes(*piece.arguments(0), config=candidate):
            continue
        with torch.inference_mode():
            if error(piece, ops) <= NEAR:
                times_us[candidate] = chain_us(_launch(ops, piece), piece, device, runs=20)
    table.hopper.pop(key, None)
    best = min(times_us, key=lambda candidate: times_us[candidate], default=None)
    if best is not None and times_us[best] < other:
        table.hopper[key] = best
        say(f"{key:44} {times_us[best]:7.2f} us of kernels/cuda  {short(best)}")
        return times_us[best]
    return math.inf


def _launch(ops: Ops, piece: Piece) -> Callable[..., None]:
    """Return the function to time: the kernel, and for the image encoder's products also the norm after it,
    which adds the rest that the product leaves."""
    kernel: Callable[..., Any] = getattr(ops, piece.kernel)
    if piece.kernel not in ENCODER:
        return kernel
    a, _, _, out, *_ = piece.arguments(0)
    x, normed = (out, torch.empty_like(out)) if piece.kernel == "add_product" else (torch.randn_like(a), a)
    weight = torch.ones_like(x[0])

    def launch(*arguments: Any) -> None:
        y, y_bias = kernel(*arguments) or (None, None)
        ops.add_layer_norm(x, y, y_bias, weight, weight, normed)

    return launch


def _blas(table: Table, piece: Piece, device: torch.device) -> float:
    """Return microseconds of a product by cuBLAS, without an entry."""
    with torch.inference_mode():
        ops = TritonOps(device, dataclasses.replace(table, pdl=True, hopper={}))
        return chain_us(_launch(ops, piece), piece, device, runs=20)


def _time(table: Table, piece: Piece, device: torch.device) -> float | None:
    """Return microseconds of the entered candidate, None if it does not fit the device or its result is
    wrong."""
    from triton.runtime.errors import OutOfResources

    ops = TritonOps(device, dataclasses.replace(table, hopper={}))
    try:
        with torch.inference_mode():
            if not error(piece, ops) <= NEAR:
                return None
            return chain_us(getattr(ops, piece.kernel), piece, device, runs=20)
    except OutOfResources:
        return None


def _of(candidates: tuple[Config, ...], ways: tuple[str, ...]) -> tuple[Config, ...]:
    return tuple(candidate for candidate in candidates if candidate.way in ways)


def parts(
    table: Table, config: PiConfig, tokens: int, device: torch.device, say: Callable[[str], None]
) -> None:
    """Enter the split-K factor with which the last product of a prefix layer and its norm are fastest."""
    weight = torch.empty(config.prefix.width, config.prefix.mlp, device="meta", dtype=torch.bfloat16)
    key, ops = parts_shape(tokens, weight).key, TritonOps(device, table)
    times_us = {count: down_us(config, tokens, count, device, ops) for count in PARTS}
    best = min(PARTS, key=lambda count: times_us[count])
    table.entries[key] = Config(16, 16, 16, best)
    say(f"{key:44} {times_us[best]:7.2f} us, whole {times_us[1]:7.2f}, in {best} parts")


def pdl_helps(
    table: Table, config: PiConfig, keys: int, device: torch.device, batch: int, say: Callable[[str], None]
) -> bool:
    """Whether programmatic dependent launch makes a layer's five kernels faster; False before compute
    capability 9."""
    if torch.cuda.get_device_capability(device)[0] < 9:
        return False
    times_us = {
        pdl: layer_us(config, keys, device, batch, TritonOps(device, dataclasses.replace(table, pdl=pdl)))
        for pdl in (False, True)
    }
    say(f"a layer: {times_us[False]:.2f} us, with early starts {times_us[True]:.2f} us")
    return times_us[True] < times_us[False]


def together(table: Table, config: PiConfig, device: torch.device, say: Callable[[str], None]) -> None:
    """Choose each kernels/cuda entry again by the time of whole layers with 1 to 3 views.

    Does nothing unless programmatic dependent launch is on.
    """
    if not (table.pdl and table.hopper):
        return
    keys = [views * config.vision.tokens + 20 for views in (1, VIEWS, 3)]

    def layers_us(key: str, candidate: Config) -> float:
        changed = dataclasses.replace(table, hopper={**table.hopper, key: candidate})
        ops = TritonOps(device, changed)
        return sum(layer_us(config, count, device, 1, ops) for count in keys)

    for _ in range(ROUNDS):
        for piece in pieces(config, keys[0], device):
            key = shape_of(piece).key
            if key in table.hopper:
                takes = TritonOps(device, table).hopper[piece.kernel].takes
                fit = [choice for choice in HOPPER[piece.kernel] if takes(*piece.arguments(0), config=choice)]
                table.hopper[key] = min(fit, key=partial(layers_us, key))
                say(f"{key:44} in company: {short(table.hopper[key])}")
    us = [layer_us(config, count, device, 1, TritonOps(device, table)) for count in keys]
    say(f"a layer with kernels/cuda, 1 to 3 views: {', '.join(f'{layer:.2f}' for layer in us)} us")


def shape_of(piece: Piece) -> Shape:
    shape: Callable[..., Any] = getattr(kernel_ops, f"{piece.kernel}_shape")
    shaped: Shape = shape(*piece.arguments(0))
    return shaped


def short(config: Config) -> str:
    return "x".join(map(str, dataclasses.astuple(config)))
