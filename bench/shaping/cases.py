"""The launches whose block shapes are compared: of pi0.5's sizes, and of others that the model was not fitted
to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from vla_accel_ros.kernels.candidates import (
    CANDIDATES,
    PREFIX_ATTENTION,
    SMALL_WEIGHTS,
    STAGGERED_ATTENTION,
    rows_candidates,
)
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.models.config import PI05, GemmaConfig, PiConfig
from vla_accel_ros.models.layers.quantized import INT4, INT8, W8A8
from vla_accel_ros.tools.tune.pieces import Piece, pieces
from vla_accel_ros.tools.tune.row_pieces import of_few_rows, of_frame
from vla_accel_ros.tools.tune.wide_pieces import prefix_attention, staggered_attention

OTHER = dataclasses.replace(
    PI05,
    prefix=GemmaConfig(1536, 18, 6144, 6, 1, 256),
    expert=GemmaConfig(768, 18, 3072, 6, 1, 256),
    horizon=30,
)
"""Sizes of no published model: the model of a launch must serve those, too."""
KINDS = {"pi05": PI05, "other": OTHER}
KEYS = 532
"""Tokens of a prefix of two images."""


class Case(NamedTuple):
    """A launch and the block shapes to time. name: unique among all cases."""

    name: str
    piece: Callable[[], Piece]
    candidates: tuple[Config, ...]


def cases(kind: str, batches: Sequence[int], device: torch.device) -> Iterator[Case]:
    """Yield the launches of a model: denoising steps of each batch, exact and with fewer bits; prefix
    attention, staggered attention; products of 8-bit rows."""
    config = KINDS[kind]
    for batch in batches:
        yield from _steps(f"{kind}, {batch}", config, batch, device)
    for weights in (INT8, INT4):
        yield from _steps(f"{kind}, 1, {weights}", config, 1, device, weights)
    for views in (1, 2, 3):
        tokens = views * 256 + 32
        yield Case(
            f"{kind}, prefix attention, {views}",
            partial(prefix_attention, config, tokens, device),
            PREFIX_ATTENTION,
        )
    yield Case(
        f"{kind}, staggered attention",
        partial(staggered_attention, config, KEYS, 10, device),
        STAGGERED_ATTENTION,
    )
    for product in (*of_frame(config, 2), *of_few_rows(config, batches[:1]), *of_frame(config, 1)):
        name = f"{kind}, {product.name}, {W8A8} rows"
        yield Case(name, partial(product.piece, device), rows_candidates(product.rows))


def _steps(
    name: str, config: PiConfig, batch: int, device: torch.device, weights: str | None = None
) -> Iterator[Case]:
    names = ["rotary_qkv", "attend", "project o", "gated_up", "project down", "embed_actions", "read_out"]
    for index, of in enumerate(names):
        if weights is not None:
            if of in ("attend", "embed_actions", "read_out"):
                continue
            splits = of.startswith("project")
            candidates = tuple(each for each in SMALL_WEIGHTS if splits or each.split == 1)
        else:
            candidates = CANDIDATES[of]
        yield Case(f"{name}, {of}", partial(_piece, config, batch, device, weights, index), candidates)


def _piece(config: PiConfig, batch: int, device: torch.device, weights: str | None, index: int) -> Piece:
    return pieces(config, KEYS, device, batch, weights=weights)[index]
