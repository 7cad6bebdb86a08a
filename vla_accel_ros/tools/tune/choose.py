"""What `vla tune` chooses: the fastest way to launch each kernel, alone and in the company of whole layers.

Candidates are data (candidates.py); one that does not fit the device, or whose result is not the reference's,
is passed over. Each is timed in a chain of launches with a different layer's weights each. Some are decided
by the time of whole layers, or of a product with what comes after it: a launch asks for its weights while the
one before computes, if both fit on a processor, so that what is fastest alone need not be so in company.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vla_accel_ros.kernels import ops as kernel_ops
from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.ops import Ops, TritonOps, parts_shape
from vla_accel_ros.kernels.tuning import WAYS, Config, Shape, Table, load_table
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.tools.tune.candidates import (
    CANDIDATES,
    ENCODER,
    HOPPER,
    PARTS,
    PREFIX_ATTENTION,
    SMALL_WEIGHTS,
    STAGGERED,
    STAGGERED_ATTENTION,
)
from vla_accel_ros.tools.tune.pieces import NEAR, Piece, chain_us, error, layer_us, pieces
from vla_accel_ros.tools.tune.wide_pieces import down_us, encoder, prefix_attention, staggered_attention

VIEWS = 2
ROUNDS = 2
"""How often each kernel is chosen again in company of the others."""


def tune(
    config: PiConfig,
    device: torch.device,
    batches: tuple[int, ...],
    say: Callable[[str], None],
    ways: tuple[str, ...] = WAYS,
    multiprocessors: int | None = None,
) -> Table:
    """The fastest Config of each kernel at the sizes of `config`, whose modulated norms are the most work.

    ways: of kernels that are timed; with fewer than all, against those of the table in use.
    multiprocessors: of the partition whose stream is the current one; None = all.
    """
    processors = multiprocessors or torch.cuda.get_device_properties(device).multi_processor_count
    used = load_table(device, multiprocessors) if set(ways) < set(WAYS) else Table(processors)
    hopper = {} if "cuda" in ways else used.hopper
    table = Table(processors, dict(used.entries), source="vla tune", hopper=dict(hopper))
    device_takes = compiling.available() and torch.cuda.get_device_capability(device) == (9, 0)
    keys = VIEWS * config.vision.tokens + 20
    for batch in batches:
        for piece in pieces(config, keys, device, batch):
            if piece.name != "attend" or batch == batches[0]:  # its entry is one for all batches
                taken = _best(table, piece, _of(CANDIDATES[piece.name], ways), device, say)
                if device_takes and batch == 1 and "cuda" in ways:
                    _hopper(table, piece, _of(HOPPER.get(piece.kernel, ()), ways), taken, device, say)
    for views in (1, VIEWS, 3):
        if device_takes and "cuda" in ways:
            for piece in encoder(config, views, device):
                _hopper(table, piece, ENCODER[piece.kernel], _blas(table, piece, device), device, say)
        tokens = views * config.vision.tokens + 32
        parts(table, config, tokens, device, say)
        _best(table, prefix_attention(config, tokens, device), _of(PREFIX_ATTENTION, ways), device, say)
    staggered = staggered_attention(config, keys, STAGGERED, device)
    taken = _best(table, staggered, _of(STAGGERED_ATTENTION, ways), device, say)
    if device_takes and "cuda" in ways:
        _hopper(table, staggered, HOPPER[staggered.kernel], taken, device, say)
    table.pdl = pdl_helps(table, config, keys, device, batches[0], say)
    if table.pdl and table.hopper and "cuda" in ways:
        together(table, config, device, say)
    return table


def tune_small(
    table: Table, config: PiConfig, device: torch.device, kind: str, say: Callable[[str], None]
) -> None:
    """Enter the fastest Config of each product of a denoising step whose weights are quantised to a kind."""
    for piece in pieces(config, VIEWS * config.vision.tokens + 20, device, 1, weights=kind):
        splits = piece.kernel == "project"
        if splits or piece.kernel in ("rotary_qkv", "gated_up"):
            _best(table, piece, tuple(c for c in SMALL_WEIGHTS if splits or c.split == 1), device, say)


def _best(
    table: Table,
    piece: Piece,
    candidates: tuple[Config, ...],
    device: torch.device,
    say: Callable[[str], None],
) -> float:
    """Enter the fastest of the candidates and of what was entered before; returns its microseconds."""
    shape = shape_of(piece)
    taken: dict[Config, float] = {}
    before = table.entries.get(shape.key)
    for candidate in (*candidates, *([] if before is None else [before])):
        table.entries[shape.key] = candidate
        us = _time(table, piece, device)
        if us is not None:
            taken[candidate] = us
    if not candidates and before is None:  # its way is not asked for
        return float("inf")
    if not taken:
        raise RuntimeError(f"no way to launch {piece.name} is right on this device; please report it.")
    best = min(taken, key=lambda candidate: taken[candidate])
    table.entries[shape.key] = best
    worst = max(taken.values())
    say(f"{shape.key:44} {taken[best]:7.2f} us of up to {worst:7.2f}  {short(best)}")
    return taken[best]


def _hopper(
    table: Table,
    piece: Piece,
    candidates: tuple[Config, ...],
    other: float,
    device: torch.device,
    say: Callable[[str], None],
) -> None:
    """Enter the fastest of kernels/cuda, if it takes less than `other` microseconds."""
    key, taken = shape_of(piece).key, {}
    for candidate in candidates:
        table.hopper[key] = candidate
        ops = TritonOps(device, dataclasses.replace(table, pdl=True))
        if not ops.hopper[piece.kernel].takes(*piece.arguments(0), config=candidate):
            continue
        with torch.inference_mode():
            if error(piece, ops) <= NEAR:
                taken[candidate] = chain_us(_launch(ops, piece), piece, device, runs=20)
    table.hopper.pop(key, None)
    best = min(taken, key=lambda candidate: taken[candidate], default=None)
    if best is not None and taken[best] < other:
        table.hopper[key] = best
        say(f"{key:44} {taken[best]:7.2f} us of kernels/cuda  {short(best)}")


def _launch(ops: Ops, piece: Piece) -> Callable[..., None]:
    """What is timed of a piece: it, and of the image encoder's products the norm beside each, too, which adds
    what a product leaves to it."""
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
    """Microseconds of a product without an entry."""
    with torch.inference_mode():
        ops = TritonOps(device, dataclasses.replace(table, pdl=True, hopper={}))
        return chain_us(_launch(ops, piece), piece, device, runs=20)


def _time(table: Table, piece: Piece, device: torch.device) -> float | None:
    """Microseconds, or None if it does not fit the device or is wrong there."""
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
    """Enter in how many parts the last product of a prefix layer is fastest."""
    weight = torch.empty(config.prefix.width, config.prefix.mlp, device="meta", dtype=torch.bfloat16)
    key, ops = parts_shape(tokens, weight).key, TritonOps(device, table)
    taken = {count: down_us(config, tokens, count, device, ops) for count in PARTS}
    best = min(PARTS, key=lambda count: taken[count])
    table.entries[key] = Config(16, 16, 16, best)
    say(f"{key:44} {taken[best]:7.2f} us, whole {taken[1]:7.2f}, in {best} parts")


def pdl_helps(
    table: Table, config: PiConfig, keys: int, device: torch.device, batch: int, say: Callable[[str], None]
) -> bool:
    """Whether a layer's five launches are faster if each starts before the one before has ended."""
    if torch.cuda.get_device_capability(device)[0] < 9:
        return False
    taken = {
        pdl: layer_us(config, keys, device, batch, TritonOps(device, dataclasses.replace(table, pdl=pdl)))
        for pdl in (False, True)
    }
    say(f"a layer: {taken[False]:.2f} us, with early starts {taken[True]:.2f} us")
    return taken[True] < taken[False]


def together(table: Table, config: PiConfig, device: torch.device, say: Callable[[str], None]) -> None:
    """Choose among kernels/cuda again, one kernel after another, by the time of whole layers of all views."""
    keys = [views * config.vision.tokens + 20 for views in (1, VIEWS, 3)]

    def taken(key: str, candidate: Config) -> float:
        changed = dataclasses.replace(table, hopper={**table.hopper, key: candidate})
        ops = TritonOps(device, changed)
        return sum(layer_us(config, count, device, 1, ops) for count in keys)

    for _ in range(ROUNDS):
        for piece in pieces(config, keys[0], device):
            key = shape_of(piece).key
            if key in table.hopper:
                takes = TritonOps(device, table).hopper[piece.kernel].takes
                fit = [each for each in HOPPER[piece.kernel] if takes(*piece.arguments(0), config=each)]
                table.hopper[key] = min(fit, key=partial(taken, key))
                say(f"{key:44} in company: {short(table.hopper[key])}")
    us = [layer_us(config, count, device, 1, TritonOps(device, table)) for count in keys]
    say(f"a layer with kernels/cuda, 1 to 3 views: {', '.join(f'{each:.2f}' for each in us)} us")


def shape_of(piece: Piece) -> Shape:
    shape: Callable[..., Any] = getattr(kernel_ops, f"{piece.kernel}_shape")
    found: Shape = shape(*piece.arguments(0))
    return found


def short(config: Config) -> str:
    return "x".join(map(str, dataclasses.astuple(config)))
