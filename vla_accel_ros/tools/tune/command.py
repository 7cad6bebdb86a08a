"""`vla tune`: times every way to launch each kernel on this GPU and keeps the fastest as its tuning table.

Candidates are data (tools/tune/candidates.py); one that does not fit the device, or whose result is not the
twin's, is passed over. Each is timed in a chain of launches with a different layer's weights each. The table
goes to the user's cache, named by GPU and versions, where engines find it; --out writes it elsewhere, for
instance to be given to others with the same device.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.kernels.tuning import WAYS, Config
from vla_accel_ros.tools.options import subcommand
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.tune.candidates import (
    CANDIDATES,
    ENCODER,
    HOPPER,
    PREFIX_ATTENTION,
    SMALL_WEIGHTS,
    STAGGERED,
    STAGGERED_ATTENTION,
)
from vla_accel_ros.tools.tune.layers import VIEWS, parts, pdl_helps, shape_of, short, together

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.kernels.ops import Ops
    from vla_accel_ros.kernels.tuning import Table
    from vla_accel_ros.models.config import PiConfig
    from vla_accel_ros.tools.tune.pieces import Piece


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "tune", "time the kernels' block shapes on this GPU and keep the best", run
    )
    parser.add_argument("--batches", nargs="+", type=int, default=(1,), help="chunks denoised at once")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS,
        help="kinds of kernels to time; with fewer than all, the table in use is what they must beat",
    )  # fmt: skip
    parser.add_argument(
        "--weights", nargs="+", choices=("fp8", "int8", "int4"), default=(),
        help="kinds of quantised weights whose products are timed, too (default: none)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="file to write (default: the user's cache)")


def run(arguments: argparse.Namespace) -> int:
    """Time, print, write. Raises RuntimeError without a CUDA device or triton."""
    import torch

    from vla_accel_ros.kernels.ops import ops_for
    from vla_accel_ros.kernels.tuning import cache_file
    from vla_accel_ros.models.config import PI05

    if not torch.cuda.is_available():
        raise RuntimeError("kernels are tuned on a GPU, and torch sees no CUDA device here.")
    device = torch.device("cuda")
    ops_for(device)
    ways, say = tuple(arguments.ways), partial(print, flush=True)
    table = tune(PI05, device, tuple(arguments.batches), say, ways)
    for kind in arguments.weights:
        tune_small(table, PI05, device, kind, say)
    out = arguments.out or cache_file(device)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**table.to_json(), **provenance()}, indent=1) + "\n")
    print(f"written: {out}")
    return 0


def tune(
    config: PiConfig,
    device: torch.device,
    batches: tuple[int, ...],
    say: Callable[[str], None],
    ways: tuple[str, ...] = WAYS,
) -> Table:
    """The fastest Config of each kernel at the sizes of `config`, whose modulated norms are the most work.

    ways: of kernels that are timed; with fewer than all, against those of the table in use.
    """
    import torch

    from vla_accel_ros.kernels.cuda import compiling
    from vla_accel_ros.kernels.tuning import Table, load_table
    from vla_accel_ros.tools.tune.pieces import pieces
    from vla_accel_ros.tools.tune.wide_pieces import encoder, prefix_attention, staggered_attention

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    used = load_table(device) if set(ways) < set(WAYS) else Table(processors)
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
    from vla_accel_ros.tools.tune.pieces import pieces

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
    import torch

    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.tune.pieces import NEAR, chain_us, error

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
    import torch

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
    import torch

    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.tune.pieces import chain_us

    with torch.inference_mode():
        ops = TritonOps(device, dataclasses.replace(table, pdl=True, hopper={}))
        return chain_us(_launch(ops, piece), piece, device, runs=20)


def _time(table: Table, piece: Piece, device: torch.device) -> float | None:
    """Microseconds, or None if it does not fit the device or is wrong there."""
    import torch
    from triton.runtime.errors import OutOfResources

    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.tune.pieces import NEAR, chain_us, error

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
