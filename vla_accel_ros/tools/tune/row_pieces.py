"""As pieces.py, for the products of int8 rows that engine.stages.int8 runs, each with its epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from vla_accel_ros.kernels.reference.int8 import place_rows, quantize
from vla_accel_ros.kernels.shapes import round_up
from vla_accel_ros.models.config import GemmaConfig, PiConfig
from vla_accel_ros.models.layers.quantized import W8A8, quantized
from vla_accel_ros.tools.tune.pieces import LAYERS, Piece, drawing

PROMPT = 32
"""Prompt tokens beside the images."""


class Product(NamedTuple):
    """A product [rows, inner] x [inner, columns].

    finish: the epilogue, see kernels.reference.int8.multiply, or "gated".
    """

    name: str
    rows: int
    columns: int
    inner: int
    finish: str = "none"
    biased: bool = False

    @property
    def kernel(self) -> str:
        """The kernel's name in kernels.ops."""
        return "gated_int8" if self.finish == "gated" else "multiply_int8"

    def piece(self, device: torch.device) -> Piece:
        """Return the product as a Piece with random numbers from a fixed seed."""
        draw, gated = drawing(device), self.finish == "gated"
        size = (2 if gated else 1) * self.columns, self.inner
        weights = [quantized(draw(*size, spread=self.inner**-0.5), W8A8) for _ in range(LAYERS)]
        a = place_rows(self.rows, self.inner, device)
        quantize(draw(self.rows, self.inner), None, a)
        out, bias = draw(self.rows, self.columns), draw(self.columns) if self.biased else None
        more = () if gated else (bias, self.finish)
        return Piece(f"{self.kernel} {self.name}", lambda i: (a, weights[i], out, *more), (2,))


def products(config: PiConfig, views: Sequence[int], batches: Sequence[int]) -> Iterator[Product]:
    """Yield one product for each entry of a table: frames with so many views, batches of chunks, and text
    decoding.

    The products of the first number of views come first.
    """
    first, *further = (of_frame(config, count) for count in views)
    entries = set[tuple[str, int, int, int]]()
    for product in chain(first, of_few_rows(config, batches), *further):
        entry = product.kernel, round_up(product.rows), product.columns, product.inner
        if entry not in entries:
            entries.add(entry)
            yield product


def of_frame(config: PiConfig, views: int) -> Iterator[Product]:
    """Yield the products of prefill and encode for `views` images, the longest first."""
    v, g, rows, stage = config.vision, config.prefix, views * config.vision.tokens, f"prefill, {views} views"
    yield from _layer(g, stage, rows + PROMPT, "add")
    yield Product(f"{stage}, last k and v", rows + PROMPT, 2 * g.kv_heads * g.head_dim, g.width)
    stage = f"encode, {views} views"
    yield Product(f"{stage}, fc1", rows, v.mlp, v.width, "gelu", biased=True)
    yield Product(f"{stage}, fc2", rows, v.width, v.mlp, "add", biased=True)
    yield Product(f"{stage}, qkv", rows, 3 * v.width, v.width, biased=True)
    yield Product(f"{stage}, o", rows, v.width, v.width, "add", biased=True)


def of_few_rows(config: PiConfig, batches: Sequence[int]) -> Iterator[Product]:
    """Yield the products of denoising each batch of chunks, and of decoding one token."""
    tokens = config.horizon + (config.kind == "pi0")
    for batch in batches:
        yield from _layer(config.expert, f"denoise, {batch}", batch * tokens, "none")
    yield from _layer(config.prefix, "a word", 1, "add")


def _layer(g: GemmaConfig, stage: str, rows: int, finish: str) -> Iterator[Product]:
    heads = g.heads * g.head_dim
    yield Product(f"{stage}, gate and up", rows, g.mlp, g.width, "gated")
    yield Product(f"{stage}, down", rows, g.width, g.mlp, finish)
    yield Product(f"{stage}, qkv", rows, heads + 2 * g.kv_heads * g.head_dim, g.width)
    yield Product(f"{stage}, o", rows, g.width, heads, finish)
