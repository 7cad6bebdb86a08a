"""Chooses the fastest launch settings of each kernel, alone and within whole layers.

Candidates are data (candidates.py); one that does not fit the device, or whose result differs from the
reference, is skipped. Each is timed in a chain of launches, each with another layer's weights. Some choices
are made by the time of whole layers, or of a product with its next kernel. A launch loads its weights while
the kernel before it computes, if both fit on a multiprocessor, so the fastest kernel alone may not be the
fastest in company.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
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
    chooser, table = Chooser(tuning, device), tuning.table
    device_takes = compiling.available() and torch.cuda.get_device_capability(device) == (9, 0)
    hopper = device_takes and "cuda" in ways
    keys = VIEWS * config.vision.tokens + 20
    for batch in batches:
        for piece in pieces(config, keys, device, batch):
            if piece.name != "attend" or batch == batches[0]:  # one entry serves all batches
                few = _of(HOPPER.get(piece.kernel, ()), ways) if hopper and batch == 1 else ()
                candidates = _of(CANDIDATES[piece.name], ways)
                yield f"{piece.name}, {batch}", partial(chooser.choose, piece, candidates, few)
    for views in (1, VIEWS, 3):
        if hopper:
            for piece in encoder(config, views, device):
                yield f"{piece.name}, {views} views", partial(chooser.tiles, piece, ENCODER[piece.kernel])
        tokens = views * config.vision.tokens + 32
        yield f"down, {views} views", partial(chooser.parts, config, tokens)
        piece, candidates = prefix_attention(config, tokens, device), _of(PREFIX_ATTENTION, ways)
        yield f"prefix attention, {views} views", partial(chooser.choose, piece, candidates)
    staggered = staggered_attention(config, keys, STAGGERED, device)
    few = HOPPER[staggered.kernel] if hopper else ()
    yield "staggered attention", partial(chooser.choose, staggered, _of(STAGGERED_ATTENTION, ways), few)
    yield "early starts", partial(chooser.early_starts, config, keys, batches[0])
    if hopper:
        yield "in company", partial(chooser.company, config)

    def whole_layers() -> Gain:
        compared = (TritonOps(device, entries) for entries in (tuning.used, table))
        return Gain(*(layer_us(config, keys, device, batches[0], ops) for ops in compared))

    yield LAYER, whole_layers


def starting_table(table: Table, ways: tuple[str, ...], used: Table, only_weights: bool = False) -> Table:
    """Return `table` as a tuning begins with it: empty, or with the entries of the table in use for fewer
    ways than all or --only-weights. Entries of kernels/cuda are left out if that way is timed."""
    table.smaller = dict(used.smaller)
    if only_weights:
        table.entries, table.hopper, table.pdl = dict(used.entries), dict(used.hopper), used.pdl
    elif set(ways) < set(WAYS):
        table.entries = dict(used.entries)
        table.hopper = {} if "cuda" in ways else dict(used.hopper)
    return table


def small_steps(
    config: PiConfig, device: torch.device, kind: str, tuning: Tuning
) -> Iterator[tuple[str, Step]]:
    """Yield the steps for each product of a denoising step, with weights quantised to `kind`."""
    chooser = Chooser(tuning, device)
    for piece in pieces(config, VIEWS * config.vision.tokens + 20, device, 1, weights=kind):
        splits = piece.kernel == "project"
        if splits or piece.kernel in ("rotary_qkv", "gated_up"):
            candidates = tuple(c for c in SMALL_WEIGHTS if splits or c.split == 1)
            yield f"{piece.name}, {kind}", partial(chooser.choose, piece, candidates)


def rows_steps(
    config: PiConfig, device: torch.device, batches: tuple[int, ...], tuning: Tuning
) -> Iterator[tuple[str, Step]]:
    """Yield the steps for each product of int8 rows."""
    chooser = Chooser(tuning, device)

    def choose(product: Product) -> Gain | None:
        return chooser.choose(product.piece(device), rows_candidates(product.rows))

    for product in products(config, (VIEWS, 1, 3), batches):
        yield f"{product.name}, {W8A8} rows", partial(choose, product)


class Chooser:
    """Enters the fastest settings in the table of a tuning, by times on a device."""

    def __init__(self, tuning: Tuning, device: torch.device) -> None:
        self._table, self._used, self._say, self._device = tuning.table, tuning.used, tuning.say, device

    def choose(
        self, piece: Piece, candidates: tuple[Config, ...], few: tuple[Config, ...] = ()
    ) -> Gain | None:
        """Enter the fastest of `candidates`, and of `few` (kernels/cuda) if it is faster; return the gain."""
        before_us = self._used_us(piece, pdl=bool(few))
        us = self._best(piece, candidates)
        us = min(us, self._hopper(piece, few, us))
        return Gain(before_us, us) if math.isfinite(us) else None

    def tiles(self, piece: Piece, tiles: tuple[Config, ...]) -> Gain:
        """Enter the fastest of `tiles` if it is faster than cuBLAS; return the gain."""
        blas_us = self._chain_us(piece, replace(self._table, pdl=True, hopper={}))  # without an entry
        before_us = self._used_us(piece, pdl=True)
        return Gain(before_us, min(blas_us, self._hopper(piece, tiles, blas_us)))

    def parts(self, config: PiConfig, tokens: int) -> None:
        """Enter the split-K factor with which the last product of a prefix layer and its norm are fastest."""
        weight = torch.empty(config.prefix.width, config.prefix.mlp, device="meta", dtype=torch.bfloat16)
        key, ops = parts_shape(tokens, weight).key, TritonOps(self._device, self._table)
        times_us = {count: down_us(config, tokens, count, self._device, ops) for count in PARTS}
        best = min(PARTS, key=lambda count: times_us[count])
        self._table.entries[key] = Config(16, 16, 16, best)
        self._say(f"{key:44} {times_us[best]:7.2f} us, whole {times_us[1]:7.2f}, in {best} parts")

    def early_starts(self, config: PiConfig, keys: int, batch: int) -> None:
        """Let launches start early if that makes a layer's five kernels faster; never before compute
        capability 9."""
        self._table.pdl = False
        if torch.cuda.get_device_capability(self._device)[0] < 9:
            return
        times_us = {
            pdl: self._layer_us(config, keys, replace(self._table, pdl=pdl), batch) for pdl in (False, True)
        }
        self._say(f"a layer: {times_us[False]:.2f} us, with early starts {times_us[True]:.2f} us")
        self._table.pdl = times_us[True] < times_us[False]

    def company(self, config: PiConfig) -> None:
        """Choose each kernels/cuda entry again by the time of whole layers with 1 to 3 views.

        Does nothing unless programmatic dependent launch is on.
        """
        table, keys = self._table, [views * config.vision.tokens + 20 for views in (1, VIEWS, 3)]
        if not (table.pdl and table.hopper):
            return

        def layers_us(key: str, candidate: Config) -> float:
            changed = replace(table, hopper={**table.hopper, key: candidate}, smaller={})
            return sum(self._layer_us(config, count, changed) for count in keys)

        for _ in range(ROUNDS):
            for piece in pieces(config, keys[0], self._device):
                key = shape_of(piece).key
                if key in table.hopper:
                    takes = TritonOps(self._device, table).hopper[piece.kernel].takes
                    fit = [c for c in HOPPER[piece.kernel] if takes(*piece.arguments(0), config=c)]
                    table.hopper[key] = min(fit, key=partial(layers_us, key))
                    self._say(f"{key:44} in company: {short(table.hopper[key])}")
        us = ", ".join(f"{self._layer_us(config, count, table):.2f}" for count in keys)
        self._say(f"a layer with kernels/cuda, 1 to 3 views: {us} us")

    def _used_us(self, piece: Piece, pdl: bool) -> float:
        """Return microseconds with the table in use.

        pdl: as for the candidates in comparison; only those for Hopper start before the previous kernel has
        ended.
        """
        return self._chain_us(piece, replace(self._used, pdl=pdl))

    def _chain_us(self, piece: Piece, table: Table) -> float:
        with torch.inference_mode():
            return chain_us(_launch(TritonOps(self._device, table), piece), piece, self._device, runs=20)

    def _layer_us(self, config: PiConfig, keys: int, table: Table, batch: int = 1) -> float:
        return layer_us(config, keys, self._device, batch, TritonOps(self._device, table))

    def _best(self, piece: Piece, candidates: tuple[Config, ...]) -> float:
        """Enter the fastest of the candidates and the previous entry; return its microseconds.

        inf if there is nothing to time. Raises RuntimeError if none of them computes the right result.
        """
        table, key = self._table, shape_of(piece).key
        times_us: dict[Config, float] = {}
        previous = table.entries.get(key)
        for candidate in (*candidates, *([] if previous is None else [previous])):
            table.entries[key] = candidate
            us = self._time(piece)
            if us is not None:
                times_us[candidate] = us
        if not candidates and previous is None:  # its way was not requested
            return math.inf
        if not times_us:
            raise RuntimeError(f"no way to launch {piece.name} is right on this device; please report it.")
        best = min(times_us, key=lambda candidate: times_us[candidate])
        table.entries[key] = best
        worst = max(times_us.values())
        self._say(f"{key:44} {times_us[best]:7.2f} us of up to {worst:7.2f}  {short(best)}")
        return times_us[best]

    def _hopper(self, piece: Piece, candidates: tuple[Config, ...], limit_us: float) -> float:
        """Enter the fastest kernels/cuda candidate if it takes less than `limit_us`; return its time, else
        inf."""
        table, key = self._table, shape_of(piece).key
        times_us = {}
        for candidate in candidates:
            table.hopper[key] = candidate
            ops = TritonOps(self._device, replace(table, pdl=True, smaller={}))
            if not ops.hopper[piece.kernel].takes(*piece.arguments(0), config=candidate):
                continue
            with torch.inference_mode():
                if error(piece, ops) <= NEAR:
                    times_us[candidate] = chain_us(_launch(ops, piece), piece, self._device, runs=20)
        table.hopper.pop(key, None)
        best = min(times_us, key=lambda candidate: times_us[candidate], default=None)
        if best is None or times_us[best] >= limit_us:
            return math.inf
        table.hopper[key] = best
        self._say(f"{key:44} {times_us[best]:7.2f} us of kernels/cuda  {short(best)}")
        return times_us[best]

    def _time(self, piece: Piece) -> float | None:
        """Return microseconds of the entered candidate, None if it does not fit the device or its result is
        wrong."""
        from triton.runtime.errors import OutOfResources

        ops = TritonOps(self._device, replace(self._table, hopper={}))
        try:
            with torch.inference_mode():
                if not error(piece, ops) <= NEAR:
                    return None
                return chain_us(getattr(ops, piece.kernel), piece, self._device, runs=20)
        except OutOfResources:
            return None


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


def _of(candidates: tuple[Config, ...], ways: tuple[str, ...]) -> tuple[Config, ...]:
    return tuple(candidate for candidate in candidates if candidate.way in ways)


def shape_of(piece: Piece) -> Shape:
    shape: Callable[..., Any] = getattr(kernel_ops, f"{piece.kernel}_shape")
    shaped: Shape = shape(*piece.arguments(0))
    return shaped


def short(config: Config) -> str:
    return "x".join(map(str, astuple(config)))
