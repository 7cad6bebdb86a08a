"""Launch settings of each kernel: `vla tune` times them, and kernels.block_shapes chooses from them.

Settings that are slow or wrong on a device are skipped there, so a list only needs the best ones of some
device.
"""

from __future__ import annotations

from vla_accel_ros.kernels.shapes import Config

# block_m, block_n, block_k, split, warps, stages
PROJECT = tuple(
    Config(block_m, block_n, block_k, split, warps, stages)
    for block_m, block_n, split, warps in (
        (64, 16, 1, 4), (32, 16, 1, 4), (16, 32, 1, 4), (64, 16, 2, 4), (64, 32, 4, 4), (64, 64, 8, 4),
        (64, 64, 4, 4)
    )
    for block_k, stages in ((64, 6), (128, 3), (128, 5), (256, 3))
) + (
    Config(64, 64, 64, 1, 4, 5), Config(64, 64, 128, 1, 4, 3), Config(128, 64, 64, 1, 8, 4),
    Config(128, 32, 128, 1, 8, 3), Config(128, 64, 128, 2, 8, 3), Config(128, 128, 64, 1, 8, 4)
)  # fmt: skip
CANDIDATES: dict[str, tuple[Config, ...]] = {
    "rotary_qkv": tuple(
        Config(block_m, block_n, block_k, 1, warps, stages)
        for block_m, block_n, warps in (
            (64, 16, 4), (64, 32, 4), (64, 32, 8), (32, 16, 4), (32, 32, 4), (16, 32, 4)
        )
        for block_k, stages in ((64, 4), (64, 8), (128, 4), (256, 3))
    )
    + (Config(128, 32, 64, 1, 8, 4), Config(128, 64, 64, 1, 8, 3)),
    "gated_up": tuple(
        Config(block_m, block_n, block_k, 1, warps, stages)
        for block_m, block_n, warps in (
            (64, 32, 4), (64, 32, 8), (64, 64, 4), (64, 64, 8), (64, 16, 4), (32, 32, 4)
        )
        for block_k, stages in ((64, 4), (64, 6), (128, 3), (128, 4))
    )
    + (Config(128, 32, 64, 1, 8, 4), Config(128, 64, 64, 1, 8, 3), Config(128, 64, 64, 1, 8, 4)),
    "project o": PROJECT,
    "project down": PROJECT,
    "attend": tuple(
        Config(block_m, block_n, 16, parts, warps, stages)
        for parts in (3, 4, 5, 6, 8, 10)
        for block_m, block_n, warps, stages in (
            (16, 32, 4, 3), (16, 64, 4, 2), (16, 64, 8, 2), (32, 32, 4, 3), (32, 64, 4, 2), (32, 64, 8, 2),
            (64, 32, 4, 3), (64, 64, 8, 2), (64, 64, 4, 2)
        )
    ),
    "embed_actions": tuple(
        Config(block_m, 16, block_k, 1, 4, stages)
        for block_m in (16, 32, 64)
        for block_k, stages in ((64, 6), (128, 4), (256, 3))
    ),
    "read_out": (Config(16, 16, 256, 1, 4, 3), Config(16, 16, 512, 1, 4, 2), Config(16, 16, 1024, 1, 8, 1)),
}  # fmt: skip
# CUDA kernels fix block_m. block_k: columns of the attention result that a block makes. split: blocks of a
# cluster. warps: computing warps; attention has teams of four, each with a part of the keys. For
# attend_rotary, block_m is 64 rows for each head of a block, and split is the number of parts of all
# sequences' keys.
HOPPER: dict[str, tuple[Config, ...]] = {
    "rotary_qkv": tuple(Config(64, 16, 64, 1, 8, stages, "cuda") for stages in (4, 6, 8, 16))
    + (Config(64, 32, 64, 1, 8, 8, "cuda"),),
    "gated_up": tuple(Config(64, 32, 64, 1, 8, stages, "cuda") for stages in (4, 6, 8))
    + (Config(64, 16, 64, 1, 8, 16, "cuda"),),
    "project": tuple(
        Config(64, block_n, 64, split, 8, stages, "cuda")
        for block_n, split in ((16, 2), (32, 3), (32, 4), (32, 5), (64, 4), (64, 5), (64, 6))
        for stages in (4, 8)
    ),
    "attend": tuple(
        Config(64, keys, columns, split, warps, 1, "cuda")
        for keys, columns, split, warps in (
            (80, 128, 4, 8), (96, 128, 4, 8), (128, 128, 4, 4), (192, 128, 4, 4), (64, 64, 3, 8),
            (80, 64, 3, 8), (112, 64, 3, 8), (96, 64, 3, 8), (112, 64, 2, 8)
        )
    ),
    "attend_rotary": (*(Config(128, keys, 16, 20, 8, 1, "cuda") for keys in (64, 80, 112)),
                      Config(64, 80, 16, 20, 4, 1, "cuda")),
}  # fmt: skip
"""Settings of kernels/cuda, for compute capability 9.0 and few rows."""
ENCODER: dict[str, tuple[Config, ...]] = {
    kernel: tuple(
        Config(block_m, block_n, 64, split, 8, stages, "cuda", down, across)
        for block_m, block_n, stages, down, across, split in tiles
    )
    for kernel, tiles in {
        "bias_product": (
            (64, 128, 9, 4, 1, 1), (64, 144, 8, 2, 1, 1), (64, 160, 8, 4, 1, 1), (128, 64, 9, 2, 2, 1),
            (128, 128, 7, 2, 2, 1), (128, 128, 7, 4, 1, 1), (128, 160, 6, 1, 1, 1), (192, 128, 5, 4, 1, 1)
        ),
        "add_product": (
            (64, 96, 10, 2, 1, 1), (64, 96, 10, 4, 1, 1), (64, 96, 10, 2, 1, 2), (64, 96, 10, 4, 1, 2),
            (64, 144, 7, 2, 1, 3), (128, 64, 9, 1, 2, 1), (128, 96, 7, 2, 2, 2), (128, 96, 7, 4, 1, 2),
            (128, 128, 6, 2, 1, 2), (192, 96, 5, 2, 2, 2)
        ),
        "gelu_product": (
            (64, 160, 8, 4, 1, 1), (128, 80, 8, 2, 2, 1), (128, 144, 6, 2, 1, 1), (128, 144, 6, 2, 2, 1),
            (192, 144, 5, 2, 2, 1), (192, 160, 5, 4, 1, 1)
        ),
    }.items()
}  # fmt: skip
"""Settings of the image encoder's products in kernels/cuda."""
PREFIX_ATTENTION = (
    Config(32, 64, 16, 1, 4, 2),
    Config(32, 32, 16, 1, 4, 3),
    Config(64, 64, 16, 1, 8, 2),
    Config(64, 32, 16, 1, 4, 3),
    Config(128, 32, 16, 1, 8, 3),
    Config(128, 64, 16, 1, 8, 2),
    Config(64, 64, 16, 1, 4, 2),
    Config(64, 128, 16, 1, 8, 2),
    Config(128, 128, 16, 1, 8, 1),
)
SMALL_WEIGHTS = tuple(
    Config(16, block_n, 128, split, warps, stages)
    for block_n, warps, split in (
        (16, 2, 1), (16, 4, 1), (16, 4, 2), (16, 4, 4), (32, 4, 1), (32, 4, 2), (64, 4, 1), (64, 4, 2),
        (64, 4, 4)
    )
    for stages in (3, 5)
)  # fmt: skip
"""Settings for products with quantised weights; only `project` can use split-K. All rows up to 64 are in one
tile (triton.small_weights.cut)."""
ROWS = tuple(
    Config(block_m, block_n, block_k, 1, warps, stages)
    for block_m, block_n, block_k, warps, depths in (
        (16, 32, 128, 4, (3, 5)), (16, 64, 128, 4, (3,)), (16, 32, 256, 4, (3,)),
        (32, 32, 128, 4, (3,)), (32, 64, 128, 4, (3,)),
        (64, 32, 128, 4, (3, 5)), (64, 64, 64, 4, (4,)), (64, 64, 128, 4, (3, 4)), (64, 128, 128, 4, (3, 4)),
        (64, 256, 128, 4, (3,)), (64, 256, 128, 8, (3,)), (128, 64, 64, 8, (3,)), (128, 64, 128, 4, (4,)),
        (128, 64, 128, 8, (3, 4)), (128, 128, 64, 8, (4,)), (128, 128, 128, 4, (3,)),
        (128, 128, 128, 8, (3, 4)), (128, 256, 64, 8, (4,)), (128, 256, 128, 8, (3,))
    )
    for stages in depths
)  # fmt: skip
"""Settings for products of 8-bit rows, gated or not."""


def rows_candidates(rows: int) -> tuple[Config, ...]:
    """Return the ROWS for a number of rows: no tile taller than needed, and low tiles only for up to
    64 rows."""
    highest = max(16, 1 << (rows - 1).bit_length())
    return tuple(c for c in ROWS if c.block_m <= highest and (c.block_m >= 64 or rows <= 64))


ATTENTION_TILES = tuple(
    Config(block_m, block_n, 16, 1, warps, stages)
    for block_m, block_n, warps, stages in (
        (16, 16, 4, 1), (16, 32, 4, 1), (16, 32, 4, 3), (16, 64, 4, 2), (32, 16, 4, 1), (32, 32, 4, 1),
        (32, 32, 4, 3), (32, 64, 4, 2), (64, 32, 4, 1), (64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 8, 2),
        (128, 32, 8, 3), (128, 64, 8, 2)
    )
)  # fmt: skip
"""Tiles of any attention."""
STAGGERED = 10
"""Batch of chunks for which their attention is tuned."""
STAGGERED_ATTENTION = tuple(
    Config(block_m, block_n, 16, STAGGERED * parts, warps, stages)
    for parts in (1, 2, 3)
    for block_m, block_n, warps, stages in (
        (64, 32, 4, 2), (64, 32, 4, 3), (64, 32, 8, 2), (64, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2),
        (32, 64, 4, 2)
    )
)  # fmt: skip
PARTS = (1, 2, 4)
"""Split-K factors of a product that cuBLAS computes in parts and the next norm adds up."""
