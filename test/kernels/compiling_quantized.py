"""As compiling.py, for products with quantised weights and the passes that leave rows in fp8.

python test/kernels/compiling_quantized.py CAPABILITY
"""

from __future__ import annotations

import sys

import torch
from architectures import ARCHITECTURES
from compiling import CPU, POINTERS, replace_kernels

from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.kernels.triton import launch, linear, project, quantized, small_weights
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.config import PI0
from vla_accel_ros.models.layers.quantized import FP8, INT4, INT8
from vla_accel_ros.models.layers.quantized import quantized as quantize
from vla_accel_ros.tools.tune import pieces


def place(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def few_rows(kind: str, table: Table) -> None:
    """The products of a denoising layer, and one of a word."""
    ops = TritonOps(CPU, table)
    for piece in pieces.pieces(PI0, 900, CPU, 1, weights=kind):
        if piece.kernel in ("rotary_qkv", "project", "gated_up"):
            getattr(ops, piece.kernel)(*piece.arguments(0))
    small_weights.multiply(place(4, 2048), quantize(torch.ones(256, 2048), kind), place(4, 256), add=True)


def fp8_rows() -> None:
    """The passes of encode and prefill."""

    def product(rows: int, columns: int) -> Product:
        return Product(place(rows, columns), torch.empty(rows, 1), torch.empty(columns))

    weight = torch.empty(2048)
    quantized.rms_norm_rows(place(544, 2048), product(544, 2048), weight, Rows.place(544, 2048, CPU))
    quantized.layer_norm_rows(
        place(512, 1152), product(512, 1152), weight, weight, weight, Rows.place(512, 1152, CPU)
    )
    quantized.glu_rows(product(544, 32768), Rows.place(544, 16384, CPU))
    quantized.gelu_rows(product(512, 4304), place(4304), Rows.place(512, 4304, CPU))


if __name__ == "__main__":
    target = int(sys.argv[1])
    POINTERS.update({torch.int8: "*i8", torch.uint8: "*u8", torch.float8_e4m3fn: "*fp8e4nv"})
    pieces.LAYERS = 1
    for module in (linear, project, quantized, small_weights):
        replace_kernels(module, target)
    if target < 90:
        launch.tiles = lambda *_: None  # as it says on such a device
    for kind in (FP8, INT8, INT4) if target >= 89 else (INT8, INT4):
        few_rows(kind, Table(ARCHITECTURES[sys.argv[1]].processors, pdl=target >= 90))
    if target >= 89:
        fp8_rows()
