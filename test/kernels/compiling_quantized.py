"""As compiling.py, for products with quantised weights or of int8 rows, and the passes that leave such rows.

python test/kernels/compiling_quantized.py CAPABILITY
"""

from __future__ import annotations

import sys

import torch
from architectures import ARCHITECTURES
from compiling import CPU, POINTERS, replace_kernels

from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.candidates import ROWS
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.reference.int8 import place_rows
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.kernels.shapes import INT8_GATED, INT8_PRODUCT, Shape
from vla_accel_ros.kernels.triton import int8, launch, linear, project, quantized, small_weights
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.config import PI0
from vla_accel_ros.models.layers.quantized import FP8, INT4, INT8, NVFP4, W8A8
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


def fp4_rows() -> None:
    """The passes of prefill in nvfp4."""
    weight, y = torch.empty(2048), Product(place(544, 32768), torch.empty(544, 1), torch.empty(32768))
    quantized.rms_norm_rows(place(544, 2048), None, weight, Rows.within(place(544, 2048), NVFP4))
    quantized.glu_rows(y, Rows.within(place(544, 16384), NVFP4))


def rows_in_8_bits(gpu: Gpu) -> None:
    """The products of encode, prefill, denoise and a word, as large as they are there, and the passes."""
    bf16 = place(1)
    for rows, columns, width, finish in (
        (512, 1152, 4304, "add"),
        (512, 4304, 1152, "gelu"),
        (544, 2560, 2048, "none"),
        (544, 2048, 16384, "add"),
        (50, 1024, 4096, "none"),
        (1, 2560, 2048, "none"),
    ):
        config = chosen(Shape(INT8_PRODUCT, rows, columns, width, "int8"), gpu)
        weight = quantize(torch.ones(columns, width), W8A8)
        bias = bf16.expand(columns) if rows == 512 else None
        int8.multiply(place_rows(rows, width, CPU), weight, place(rows, columns), bias, finish, config=config)
    for rows, columns, width in ((544, 16384, 2048), (50, 4096, 1024), (1, 16384, 2048)):
        config = chosen(Shape(INT8_GATED, rows, columns, width, "int8"), gpu)
        weight = quantize(torch.ones(2 * columns, width), W8A8)
        activation = "silu" if rows == 1 else "gelu"
        int8.gated(place_rows(rows, width, CPU), weight, place(rows, columns), activation, config=config)
    of_tuning = {(each.block_m, each.block_n): each for each in ROWS}  # those of most stages
    wide, narrow = (quantize(torch.ones(columns, 2048), W8A8) for columns in (4096, 2048))
    a = place_rows(544, 2048, CPU)
    int8.multiply(a, narrow, place(544, 2048), None, "add", config=of_tuning[128, 128])
    for tile in ((128, 64), (64, 128)):
        int8.gated(a, wide, place(544, 2048), config=of_tuning[tile])
    by, tables, ints = torch.empty(16384), torch.empty(3, 10, 1024), torch.zeros(1, dtype=torch.int32)
    int8.quantize(place(544, 16384), by, place_rows(544, 16384, CPU))
    int8.rms_norm(place(544, 2048), by[:2048], place_rows(544, 2048, CPU))
    int8.rms_norm(place(544, 2048), by[:2048], place(544, 2048))
    int8.layer_norm(place(512, 1152), by[:1152], by[:1152], place_rows(512, 1152, CPU))
    x, y = place(1, 50, 1024), place(1, 50, 1024)
    int8.add_norm(x, y, by[:1024], place_rows(50, 1024, CPU), ints, *tables)
    int8.add_norm(x, y, None, None, ints, tables[0])


if __name__ == "__main__":
    target, here = int(sys.argv[1]), ARCHITECTURES[sys.argv[1]].gpu
    POINTERS.update({torch.int8: "*i8", torch.uint8: "*u8", torch.float8_e4m3fn: "*fp8e4nv"})
    pieces.LAYERS = 1
    for module in (int8, linear, project, quantized, small_weights):
        replace_kernels(module, target)
    if target < 90:
        launch.tiles = lambda *_: None  # as it says on such a device
    for kind in (FP8, INT8, INT4) if target >= 89 else (INT8, INT4):
        few_rows(kind, Table(here, pdl=target >= 90))
    rows_in_8_bits(here)
    if target >= 89:
        fp8_rows()
    if target >= 100:
        fp4_rows()
