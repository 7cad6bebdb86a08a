"""`vla tune`: times every way to launch each kernel on this GPU and keeps the fastest as its tuning table.

Candidates are data (CANDIDATES); one that does not fit the device, or whose result is not the twin's, is
passed over. Attention and the projection that combines its parts are timed together, because more parts make
one faster and the other slower. The table goes to the user's cache, named by GPU and versions, where engines
find it; --out writes it elsewhere, for instance to be given to others with the same device.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.kernels.tuning import Config
from vla_accel_ros.tools.options import subcommand
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.kernels.tuning import Shape, Table
    from vla_accel_ros.models.config import PiConfig
    from vla_accel_ros.tools.bench.pieces import Piece

# block_m, block_n, block_k, split, warps, stages
CANDIDATES: dict[str, tuple[Config, ...]] = {
    "rotary_qkv": (
        Config(64, 16, 64, 1, 4, 5),
        Config(64, 16, 128, 1, 8, 4),
        Config(32, 16, 128, 1, 4, 5),
        Config(32, 32, 64, 1, 4, 5),
        Config(64, 32, 64, 1, 4, 5),
        Config(16, 32, 128, 1, 4, 4),
    ),
    "gated_up": (
        Config(64, 32, 64, 1, 4, 6),
        Config(64, 32, 64, 1, 8, 5),
        Config(64, 32, 128, 1, 8, 4),
        Config(64, 16, 64, 1, 4, 6),
        Config(32, 32, 64, 1, 4, 6),
        Config(64, 64, 64, 1, 8, 4),
    ),
    "project": (
        Config(64, 32, 128, 4, 4, 4),
        Config(64, 64, 64, 8, 4, 5),
        Config(64, 32, 64, 4, 4, 6),
        Config(64, 64, 128, 8, 8, 3),
        Config(32, 32, 128, 2, 4, 4),
        Config(32, 16, 128, 1, 4, 5),
    ),
    "project_attended": (
        Config(32, 64, 64, 4, 4, 3),
        Config(64, 64, 64, 8, 8, 3),
        Config(64, 32, 64, 4, 8, 3),
        Config(32, 32, 64, 2, 4, 3),
        Config(32, 128, 64, 8, 4, 2),
    ),
    "attend": tuple(
        Config(block_m, block_n, 16, parts, warps, 2)
        for parts in (2, 4, 8)
        for block_m, block_n, warps in ((16, 64, 4), (32, 64, 4), (64, 64, 8))
    ),
    "embed_actions": (
        Config(32, 16, 64, 1, 4, 4),
        Config(64, 16, 64, 1, 4, 4),
        Config(16, 32, 64, 1, 4, 3),
    ),
    "read_out": (Config(16, 16, 256, 1, 4, 3), Config(16, 16, 512, 1, 4, 2), Config(16, 16, 1024, 1, 8, 1)),
}
PREFIX_ATTENTION = (
    Config(32, 64, 16, 1, 4, 2),
    Config(32, 32, 16, 1, 4, 3),
    Config(64, 64, 16, 1, 8, 2),
    Config(64, 32, 16, 1, 4, 3),
    Config(128, 32, 16, 1, 8, 3),
    Config(128, 64, 16, 1, 8, 2),
)
VIEWS = 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "tune", "time the kernels' block shapes on this GPU and keep the best", run
    )
    parser.add_argument("--batches", nargs="+", type=int, default=(1,), help="chunks denoised at once")
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
    table = tune(PI05, device, tuple(arguments.batches), lambda line: print(line, flush=True))
    out = arguments.out or cache_file(device)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**table.to_json(), **provenance()}, indent=1) + "\n")
    print(f"written: {out}")
    return 0


def tune(
    config: PiConfig, device: torch.device, batches: tuple[int, ...], say: Callable[[str], None]
) -> Table:
    """The fastest Config of each kernel at the sizes of `config`, whose modulated norms are the most work."""
    import torch

    from vla_accel_ros.kernels.tuning import Table
    from vla_accel_ros.tools.bench.pieces import pieces, prefix_attention

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    table = Table(processors, source="vla tune")
    keys = VIEWS * config.vision.tokens + 20
    for batch in batches:
        for name in ("rotary_qkv", "gated_up", "project", "embed_actions", "read_out"):
            (piece,) = (p for p in pieces(config, keys, device, batch) if p.name == name)
            _best(table, piece, CANDIDATES[name], device, say)
        if batch == batches[0]:  # its entry is one for all batches
            _best_attention(table, config, keys, device, batch, say)
            continue
        parts = table.pick(_shape(pieces(config, keys, device)[1])).split
        (piece,) = (p for p in pieces(config, keys, device, batch, parts) if p.name == "project_attended")
        _best(table, piece, CANDIDATES[piece.name], device, say)
    for views in (1, VIEWS, 3):
        tokens = views * config.vision.tokens + 32
        _best(table, prefix_attention(config, tokens, device), PREFIX_ATTENTION, device, say)
    table.pdl = _pdl_helps(table, config, keys, device, batches[0], say)
    return table


def _best(
    table: Table,
    piece: Piece,
    candidates: tuple[Config, ...],
    device: torch.device,
    say: Callable[[str], None],
) -> float:
    """Enter the fastest candidate of a piece; returns its microseconds."""
    shape = _shape(piece)
    taken: dict[Config, float] = {}
    for candidate in candidates:
        table.entries[shape.key] = candidate
        us = _time(table, piece, device)
        if us is not None:
            taken[candidate] = us
    if not taken:
        raise RuntimeError(f"no way to launch {piece.name} is right on this device; please report it.")
    best = min(taken, key=lambda candidate: taken[candidate])
    table.entries[shape.key] = best
    worst = max(taken.values())
    say(f"{shape.key:44} {taken[best]:7.2f} us of up to {worst:7.2f}  {_short(best)}")
    return taken[best]


def _best_attention(
    table: Table, config: PiConfig, keys: int, device: torch.device, batch: int, say: Callable[[str], None]
) -> None:
    from vla_accel_ros.tools.bench.pieces import pieces

    results: dict[float, dict[str, Config]] = {}
    for parts in sorted({candidate.split for candidate in CANDIDATES["attend"]}):
        both = {p.name: p for p in pieces(config, keys, device, batch, parts)}
        attend, project = both["attend"], both["project_attended"]
        taken: dict[Config, float] = {}
        for candidate in CANDIDATES["attend"]:
            if candidate.split == parts:
                table.entries[_shape(attend).key] = candidate
                us = _time(table, attend, device)
                if us is not None:
                    taken[candidate] = us
        if not taken:
            continue
        best = min(taken, key=lambda candidate: taken[candidate])
        say(f"{parts} parts: attend {taken[best]:7.2f} us  {_short(best)}")
        total = taken[best] + _best(table, project, CANDIDATES["project_attended"], device, say)
        chosen = table.entries[_shape(project).key]
        results[total] = {_shape(attend).key: best, _shape(project).key: chosen}
    if not results:
        raise RuntimeError("no way to launch attend is right on this device; please report it.")
    table.entries |= results[min(results)]


def _time(table: Table, piece: Piece, device: torch.device) -> float | None:
    """Microseconds, or None if it does not fit the device or is wrong there."""
    import torch
    from triton.runtime.errors import OutOfResources

    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.bench.pieces import NEAR, chain_us, error

    ops = TritonOps(device, dataclasses.replace(table, pdl=False))
    try:
        with torch.inference_mode():
            if not error(piece, ops) <= NEAR:
                return None
            return chain_us(getattr(ops, piece.name), piece, device, runs=20)
    except OutOfResources:
        return None


def _pdl_helps(
    table: Table, config: PiConfig, keys: int, device: torch.device, batch: int, say: Callable[[str], None]
) -> bool:
    """Whether a layer's five launches are faster if each starts before the one before has ended."""
    import torch

    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.bench.pieces import layer_us

    if torch.cuda.get_device_capability(device)[0] < 9:
        return False
    taken = {
        pdl: layer_us(config, keys, device, batch, TritonOps(device, dataclasses.replace(table, pdl=pdl)))
        for pdl in (False, True)
    }
    say(f"a layer: {taken[False]:.2f} us, with early starts {taken[True]:.2f} us")
    return taken[True] < taken[False]


def _shape(piece: Piece) -> Shape:
    from vla_accel_ros.kernels import ops

    shape: Callable[..., Any] = getattr(ops, f"{piece.name}_shape")
    found: Shape = shape(*piece.arguments(0))
    return found


def _short(config: Config) -> str:
    return "x".join(map(str, dataclasses.astuple(config)))
