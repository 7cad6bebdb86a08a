"""What `vla tune` decides by the time of whole layers, or of a product with what comes after it.

A launch asks for its weights while the one before computes, if both fit on a processor: what is fastest alone
need not be in company.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vla_accel_ros.kernels.tuning import Config
from vla_accel_ros.tools.tune.candidates import HOPPER, PARTS

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.kernels.tuning import Shape, Table
    from vla_accel_ros.models.config import PiConfig
    from vla_accel_ros.tools.tune.pieces import Piece

VIEWS = 2
ROUNDS = 2
"""How often each kernel is chosen again in company of the others."""


def parts(
    table: Table, config: PiConfig, tokens: int, device: torch.device, say: Callable[[str], None]
) -> None:
    """Enter in how many parts the last product of a prefix layer is fastest."""
    import torch

    from vla_accel_ros.kernels.ops import TritonOps, parts_shape
    from vla_accel_ros.tools.tune.wide_pieces import down_us

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
    import torch

    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.tune.pieces import layer_us

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
    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.tune.pieces import layer_us, pieces

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
    from vla_accel_ros.kernels import ops

    shape: Callable[..., Any] = getattr(ops, f"{piece.kernel}_shape")
    found: Shape = shape(*piece.arguments(0))
    return found


def short(config: Config) -> str:
    return "x".join(map(str, dataclasses.astuple(config)))
