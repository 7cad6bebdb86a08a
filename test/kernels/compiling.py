"""Compiles every kernel for a compute capability without a device of it; a script, because tests interpret.

    python test/kernels/compiling.py CAPABILITY [TABLE.json]

Launches are the bench's own, at the published sizes; instead of running, each is compiled, and a line of JSON
says what it needs: {"kernel", "threads", "registers", "stack", "shared", "wgmma", "int8", "fp8", "fused",
"stores_one_by_one", "rows"}. rows: of a tile. stack: bytes of spilled registers. int8, fp8: whether the
matrix
units multiply it. fused: additions of another lane's value that a product was fused with (launch.rounded);
the kernels of a flow step's ends are compiled for small tiles, too, of which a lane has one value.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from architectures import ARCHITECTURES
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.reference.flow import Guide, History, Magnitudes
from vla_accel_ros.kernels.reference.image import Views
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton import (
    attention,
    flow,
    full_attention,
    heads,
    image,
    launch,
    linear,
    norm,
    project,
    rotary_attention,
)
from vla_accel_ros.kernels.tuning import Table, read_table
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.models.openvla.policy import PixelNorm
from vla_accel_ros.models.processing.conventions import LEROBOT, OPENPI
from vla_accel_ros.tools.tune import pieces, wide_pieces

POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
}
CPU = torch.device("cpu")


class Compiled:
    """Stands for a kernel: what it is launched with is compiled for the capability."""

    def __init__(self, kernel: JITFunction, capability: int) -> None:
        self.kernel, self.capability = kernel, capability

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.launch

    def launch(self, *arguments: Any, **named: Any) -> None:
        known = ("num_warps", "num_stages", "launch_pdl", "enable_fp_fusion")
        options = {name: named.pop(name) for name in known if name in named}
        given = {**dict(zip(self.kernel.arg_names, arguments)), **named}
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(self.kernel.params):
            value, name = given[parameter.name], parameter.name
            if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, TensorDescriptor):
                signature[name] = f"tensordesc<{POINTERS[value.base.dtype][1:]}{value.block_shape}>"
            elif isinstance(value, torch.Tensor):
                signature[name], attributes[(index,)] = POINTERS[value.dtype], [["tt.divisibility", 16]]
            elif isinstance(value, int):
                signature[name] = "i32"
                if value % 16 == 0:
                    attributes[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[name] = "fp32"
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=attributes)
        made = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
        registers, stack = usage(made.asm["cubin"])
        needs: dict[str, Any] = {
            "threads": 32 * made.metadata.num_warps,
            "registers": registers,
            "stack": stack,
            "shared": made.metadata.shared,
        }
        ptx = made.asm["ptx"]
        found: dict[str, Any] = {
            "wgmma": "wgmma" in ptx,
            "int8": in_int8(ptx),
            "fp8": in_fp8(ptx),
            "fused": fused(ptx),
        }
        found["stores_one_by_one"] = "st.global.b16" in ptx
        found["rows"] = given.get("BLOCK_M")
        print(json.dumps({"kernel": self.kernel.__name__, **needs, **found}))


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack frame."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout).groups()
    return int(registers), int(stack)


def fused(ptx: str) -> int:
    """Additions of what another lane sent that are one instruction with a multiplication."""
    sent = set(re.findall(r"shfl\.sync\.bfly\.b32\s+(%r\d+)", ptx))
    added = re.findall(r"fma\.rn\.f32\s+%r\d+, %r\d+, %r\d+, (%r\d+)", ptx)
    return sum(register in sent for register in added)


def in_int8(ptx: str) -> bool:
    """Whether the matrix units multiply int8 by int8."""
    return bool(re.search(r"(mma|wgmma)\.\S*\.s8\.s8", ptx)) or "tcgen05.mma.cta_group::1.kind::i8" in ptx


def in_fp8(ptx: str) -> bool:
    """Whether the matrix units multiply e4m3 by e4m3."""
    return bool(re.search(r"(mma|wgmma)\.\S*\.e4m3\.e4m3", ptx)) or ".kind::f8f6f4" in ptx


def replace_kernels(module: ModuleType, capability: int) -> None:
    """Make every launch of the module's kernels a compilation."""
    called = {
        "_two_products",
        "_squares",
        "_over",
        "_gelu",
        "_level",
        "_rotated",
        "_soften",
        "_pairs",
        "_vectors",
    }
    called |= {
        "small_product",
        "two_small_products",
        "_group",
        "_whole",
        "_leave_row",
        "_leave_fp4",
        "_read",
        "_leave_int8",
    }
    for name, value in list(vars(module).items()):
        if not isinstance(value, JITFunction) or value.fn.__module__ != module.__name__:
            continue  # another module's are called, not launched
        if name not in called:
            setattr(module, name, Compiled(value, capability))


def every(config: PiConfig, table: Table, pdl: bool) -> None:
    """Launch each kernel of a step once."""
    ops = TritonOps(CPU, dataclasses.replace(table, pdl=pdl))
    for piece in pieces.pieces(config, 900, CPU, 1):
        getattr(ops, piece.kernel)(*piece.arguments(0))


def guided(config: PiConfig, table: Table, pdl: bool) -> None:
    """Both ends of a step of a chunk that has to agree with another, and with a flow time for each action."""
    ops = TritonOps(CPU, dataclasses.replace(table, pdl=pdl))
    for piece in pieces.pieces(config, 900, CPU, 1):
        given = list(piece.arguments(0))
        if piece.kernel == "embed_actions":
            given[2] = given[2].repeat(config.horizon, 1)
            ops.embed_actions(*given)
        elif piece.kernel == "read_out" and config.kind == "pi05":
            x, counts = given[3], torch.zeros(1, dtype=torch.int32)
            weights, gains = torch.empty(x.shape[:2]), torch.empty(1, 10)
            magnitudes = Magnitudes(torch.empty(1, 10, config.horizon), counts)
            guide = Guide(torch.empty_like(x), weights, gains, torch.empty(10), counts)
            given += [counts, magnitudes, guide]
            ops.read_out(*given)
            given.append(History(torch.empty_like(x), torch.empty(10, 2)))
            ops.read_out(*given)


def between(table: Table) -> None:
    """The kernels of encode and prefill."""

    def place(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16)

    for rule, patch in ((OPENPI.pixels, 14), (LEROBOT.pixels, 14), (PixelNorm().rule, 224)):
        image.patches(Views(rule, 224, 1, CPU), patch, torch.empty(1, 256, 588))
    ints, angles = torch.zeros(1, dtype=torch.int32), torch.empty(900, 128)
    weight = torch.empty(2048)
    norm.rms_norm(place(532, 2048), weight, place(532, 2048))
    norm.add_layer_norm(place(512, 1152), place(512, 1152), weight, weight, weight, place(512, 1152))
    modulated = (weight, weight, place(41, 1536), weight, 1e-5)
    norm.add_layer_norm(place(41, 1536), place(41, 1536), weight, *modulated, computed=True, pdl=table.pdl)
    rows = place(595, 4096), place(595, 4096), None, place(4096), None, place(595, 4096)
    norm.add_layer_norm(*rows, centred=False, pdl=table.pdl)
    norm.bias_gelu(place(512, 4304), place(4304))
    own_heads, seen = place(1, 41, 32, 48), torch.ones(1, 186, dtype=torch.bool)
    keys = place(1, 32, 186, 48).transpose(1, 2)
    full_attention.attend_full(own_heads, keys, keys, place(1, 41, 1536), seen, pdl=table.pdl)
    wide = place(1, 595, 32, 128)
    full_attention.attend_full(wide, wide, wide, place(1, 595, 4096), pdl=table.pdl)
    frame, own = place(1, 120, 24, 128), place(1, 32, 24, 128)
    full_attention.attend_full(own, frame, frame, place(1, 32, 3072), tail=(own, own), pdl=table.pdl)
    far, scratch = place(1, 19200, 8, 128), launch.Scratch.of(CPU)
    full_attention.attend_full(own[:, :16, :8], far, far, place(1, 16, 1024), scratch=scratch, pdl=table.pdl)
    norms, turns = (place(3072), place(3072)), torch.empty(32, 64)
    rotate = partial(heads.rotate_heads, place(1, 32, 48, 128), 24)
    rotate(turns, turns, place(1, 32, 48, 128), norms, whole=True, paired=True, pdl=table.pdl)
    rotate(None, None, place(1, 32, 48, 128), (place(128), place(128)), pdl=table.pdl)
    norm.glu(place(1, 4, 32768), place(1, 4, 16384))
    q, k = place(1, 532, 8, 256), place(2, 1, 900, 256)
    norm.place_qkv(place(1, 532, 2560), angles, angles, ints, q, k, k, ints, ints)
    TritonOps(CPU, dataclasses.replace(table, hopper={})).attend(q, k, k, ints, ints, place(1, 532, 2048))
    tables = torch.empty(3, 10, 1024)
    norm.add_norm(place(1, 50, 1024), place(2, 1, 50, 1024), place(1, 50, 1024), ints, *tables)


def staggered(table: Table, pdl: bool) -> None:
    """Attention of staggered steps, as a table says."""
    piece = wide_pieces.staggered_attention(PI0, 532, 10, CPU)
    TritonOps(CPU, dataclasses.replace(table, pdl=pdl)).attend_rotary(*piece.arguments(0))


def narrow() -> None:
    """Both ends of a step in tiles so small that a lane has one value of a row."""
    config = Config(16, 16, 16)
    hidden, x = torch.empty(3, 8, 40), torch.empty(3, 7, 6)
    weight, bias, mlp_weight, mlp_bias = map(torch.empty, ((40, 6), (1, 40), (40, 40), (40,)))
    scratch, norm_of = launch.Scratch.of(CPU, 1 << 14, 1), Norm.of(hidden, scaled=False)
    given = (x, weight, bias, hidden, mlp_weight, mlp_bias, torch.empty(3, 40), norm_of)
    flow.embed_actions(*given, config=config, scratch=scratch)
    flow.read_out(hidden, torch.empty(6, 40), torch.empty(1, 6), x, torch.empty_like(x), config=config)


if __name__ == "__main__":
    target = int(sys.argv[1])
    gpu = ARCHITECTURES[sys.argv[1]].gpu
    chosen = Table(gpu)
    if len(sys.argv) > 2:
        chosen = read_table(Path(sys.argv[2]).read_text(), sys.argv[2], gpu)
    pieces.LAYERS = 1
    for module in (attention, flow, full_attention, heads, image, linear, norm, project, rotary_attention):
        replace_kernels(module, target)
    vars(full_attention)["combine"] = attention.combine
    room_bytes = ARCHITECTURES[sys.argv[1]].shared_bytes
    full_attention._room = lambda q, block: room_bytes // (4 * block)
    if target < 90:
        launch.tiles = lambda *_: None  # as it says on such a device
    every(PI05, chosen, pdl=target >= 90)
    every(PI0, chosen, pdl=False)
    guided(PI05, chosen, pdl=target >= 90)
    guided(PI0, chosen, pdl=False)
    between(chosen)
    staggered(chosen, pdl=target >= 90)
    narrow()
