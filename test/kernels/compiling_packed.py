"""As compiling.py, for the kernels of packed forwards, launched as by engine.stages.packed_forward.

python test/kernels/compiling_packed.py CAPABILITY
"""

from __future__ import annotations

import sys

import torch
from compiling import CPU, POINTERS, Compiled

from vla_accel_ros.kernels.triton import norm, packed_attention, rows
from vla_accel_ros.kernels.work import Shape, Work
from vla_accel_ros.models.config import PI05, GemmaConfig
from vla_accel_ros.models.layers.packed import sees
from vla_accel_ros.models.openvla.config import OPENVLA_7B

KERNELS = {
    packed_attention: ("_rotary_write", "_attend", "_combine"),
    rows: ("_rms_norm",),
    norm: ("_glu",),
}


def forward(sizes: GemmaConfig, work: Work, activation: str) -> None:
    """Launch each kernel of a layer once."""

    def place(width: int) -> torch.Tensor:
        return torch.empty(work.rows, width, dtype=torch.bfloat16)

    qkv = place((sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim)
    angles, factor = torch.empty(900, sizes.head_dim // 2), torch.empty(sizes.width)
    rows.rms_norm(place(sizes.width), factor, 1e-6, place(sizes.width))
    packed_attention.rotary_write(qkv, angles, angles, work, 3, sizes.heads)
    attended = place(sizes.heads * sizes.head_dim)
    packed_attention.attend(qkv, work, 3, sizes.heads, sizes.head_dim, attended)
    rows.glu(place(2 * sizes.mlp), place(sizes.mlp), activation)


def work_of(sizes: GemmaConfig, prompt: int, single: int, block_m: int, splits: int) -> Work:
    shapes = [Shape(prompt, tuple(sees(prompt, True, 0)))] if prompt else []
    shapes += [Shape(1, (1,))] * single
    return Work(shapes, 4 * len(shapes), sizes.heads // sizes.kv_heads, CPU, block_m, splits)


if __name__ == "__main__":
    POINTERS[torch.int64] = "*i64"
    for module, names in KERNELS.items():
        for name in names:
            setattr(module, name, Compiled(getattr(module, name), int(sys.argv[1])))
    llama, gemma = OPENVLA_7B.prefix, PI05.prefix
    forward(llama, work_of(llama, 288, 8, 32, 1), "silu")
    forward(gemma, work_of(gemma, 0, 8, 16, 16), "gelu")
