"""Products that `vla tune` timed, in the form of `gemm` in a device file (planning.device.Shape)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vla_accel_ros.models.config import PI05
from vla_accel_ros.planning.device import Shape
from vla_accel_ros.planning.operations import GATED, ROWS
from vla_accel_ros.tools.tune.row_pieces import products

LABEL = "w8a8 rows"
"""The end of a step's label."""


def shapes(found: dict[str, Any]) -> Iterator[Shape]:
    """Of the rows in 8 bits in what `vla tune --weights w8a8` wrote."""
    known = {product.name: product for product in products(PI05, (2, 1, 3), found["about"]["batches"])}
    for label, gain in found["done"].items():
        name, _, end = label.rpartition(", ")
        if end != LABEL or gain is None:
            continue
        product = known[name]
        gated = product.finish == "gated"
        dtype = f"int8 {GATED if gated else ROWS}"
        columns = product.columns * (2 if gated else 1)
        yield Shape(product.rows, columns, product.inner, dtype, round(gain["us"], 2))


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The YAML of them."""
    for shape in shapes(found):
        yield f"  - [{shape.m}, {shape.n}, {shape.k}, {shape.dtype}, {shape.us:g}]"
