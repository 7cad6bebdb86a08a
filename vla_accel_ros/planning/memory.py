"""Predict a model's memory on a device: weights, copies, keys and values, buffers, frames, context.

Weights are the parameters' bytes, exactly. Copies are what folding and quantisation add (models.pi.folding,
models.layers.quantized), exactly; given_up is what `keep_exact: false` removes (engine.stages.dropping). Keys
and values are the pool. Buffers are those of the captured stages, sized as the stages size them; what
libraries allocate is estimated. While stages are built, one block of a matrix that is being quantised comes
on top of the final memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from math import prod

from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.micro_requests import INSTRUCTION
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.work import PlainSizes, Sizes, Work

GROUP = 64
"""Columns that share a scale in int4."""
FRAME = (480, 640)
"""Default height and width of a camera's image."""
WORKSPACE = {True: 96 << 20, False: 32 << 20}
"""cuBLAS workspaces of the streams with graphs, on Hopper and later, and before: its defaults for three
streams."""
SCRATCH = 16 << 20
"""Partial sums of the kernels of one chain of launches (kernels.triton.launch.Scratch)."""
CHAINS = 2
"""Chains of launches: encode with prefill, and denoise."""
QUANTISING = {"bf16": 0, "fp8": 12 << 20, "int8": 12 << 20, "int4": 24 << 20, "fp4": 29 << 20}
"""Temporaries of quantising a matrix: a float32 block (models.layers.quantized.BLOCK) three times, six for
int4."""


@dataclass(frozen=True)
class Memory:
    """Bytes. weights, copies, given_up (negative) and kv are exact; buffers and frames follow the stages;
    building, workspace and context are estimates. building: on top of the rest, for a moment."""

    weights: int
    copies: int
    given_up: int
    kv: int
    buffers: int
    frames: int
    building: int
    workspace: int
    context: int

    @property
    def allocated(self) -> int:
        """What the framework's allocator holds: all but the context."""
        return self.total - self.context

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return sum(vars(self).values())


def memory(
    sizes: Sizes,
    work: Work,
    device: Device,
    slots: int = 5,
    frame: tuple[int, int] = FRAME,
    seats: int = 0,
    keep_exact: bool = True,
    text: bool = False,
) -> Memory:
    """Predict memory with a pool of `slots` slots. frame: height and width of images. seats: of staggered
    chunks. keep_exact: see engine.config. text: whether pi0 or pi0.5 answers questions, for which int8 and
    int4 also copy the prefix stack."""
    pixels = 0 if device.unified else work.views * work.batch * 3 * frame[0] * frame[1]
    from vla_accel_ros.planning.networks import weight_parts  # needs torch

    return Memory(
        weights=sum(weight_parts(sizes).values()),
        copies=copies(sizes, work, text, keep_exact),
        given_up=0 if keep_exact else -sum(_given_up(sizes, work).values()),
        kv=kv_bytes(sizes, slots),
        buffers=_buffers(sizes, work, slots, seats),
        frames=pixels,
        building=_building(sizes, work),
        workspace=WORKSPACE[device.capability >= 90] + CHAINS * SCRATCH,
        context=round(1e9 * device.value("context_gb")),
    )


def room(device: Device) -> float:
    """Return the bytes that an engine may take: of memory shared with the host, 85 %."""
    return 1e9 * device.memory_gb * (0.85 if device.unified else 1.0)


def kv_bytes(sizes: Sizes, slots: int) -> int:
    """Return the bytes of a pool: keys and values, or what else the family declares to be kept with a frame
    and, an instruction a slot, with words."""
    if isinstance(sizes, PlainSizes) and not isinstance(sizes, GrootConfig):
        of_words = (micro.leaves for micro in sizes.chain.micro_requests if micro.kept == INSTRUCTION)
        leaves = {leaf.name: leaf for leaf in chain(*of_words)} | dict(sizes.chain.kept)
        return slots * sum(2 * prod(leaf.shape) for leaf in leaves.values() if leaf.dtype is None)
    g = sizes.prefix
    return slots * 2 * g.depth * g.kv_heads * sizes.max_tokens * g.head_dim * 2


def copies(sizes: Sizes, work: Work, text: bool = False, keep_exact: bool = True) -> int:
    """Return the bytes of folded matrices of pi0's expert and of quantised matrices, beside the exact ones or
    instead."""
    return sum(_copies(sizes, work, text, keep_exact).values())


def parts(
    sizes: Sizes, work: Work, text: bool = False, keep_exact: bool = True
) -> dict[str, tuple[int, int, int]]:
    """Return the bytes of weights, of copies, and of what is given up (negative), by part of the model."""
    from vla_accel_ros.planning.networks import weight_parts  # needs torch

    copied = _copies(sizes, work, text, keep_exact)
    dropped = {} if keep_exact else _given_up(sizes, work)
    return {
        name: (weights, copied.get(name, 0), -dropped.get(name, 0))
        for name, weights in weight_parts(sizes).items()
        if weights
    }


def _copies(sizes: Sizes, work: Work, text: bool, keep_exact: bool) -> dict[str, int]:
    if work.precision.startswith("all-") or isinstance(sizes, PiFastConfig | PlainSizes):
        return {}
    if isinstance(sizes, SmolVLAConfig):
        expert, crossing = sizes.expert, len(sizes.crossing)
        total = expert.depth * (_qkv(expert) + expert.heads * expert.head_dim + 3 * expert.mlp)
        return {"all": 2 * sizes.padded_width * (total - crossing * 2 * expert.kv_heads * expert.head_dim)}
    if isinstance(sizes, OpenVLAConfig):
        kind = work.dtypes("decode").weights
        return {} if kind == "bf16" else {"prefix": _stack_in(kind, sizes.prefix)}
    e, p, v = sizes.expert, sizes.prefix, sizes.vision
    copied = {"encoder": 0, "prefix": 0, "expert": 0}
    if sizes.kind == "pi0" and (keep_exact or work.dtypes("denoise").weights == "bf16"):
        copied["expert"] += 2 * e.depth * e.width * (_qkv(e) + 2 * e.mlp)
    rows = work.rows_in
    if rows is not None:
        copied["encoder"] += _encoder_in(rows, v, with_o=True)
        copied["prefix"] += _stack_in(rows, p)
    if work.precision in ("fp8", "nvfp4"):
        copied["prefix"] += _stack_in(work.dtypes("prefill").weights, p, with_o=False)
        if work.dtypes("encode").weights == "fp8":
            copied["encoder"] += _encoder_in("fp8", v)
    if (denoise := work.dtypes("denoise").weights) != "bf16":
        copied["expert"] += _stack_in(denoise, e)
    decode = work.dtypes("decode").weights
    shared = work.rows_everywhere or (rows is not None and not keep_exact)  # shared with prefill
    if text and decode != "bf16" and not shared:
        copied["prefix"] += _stack_in(decode, p)
    return copied


def _given_up(sizes: Sizes, work: Work) -> dict[str, int]:
    """Return the bytes of the exact weights that the stages have quantised."""
    if isinstance(sizes, OpenVLAOFTConfig):
        return {}
    if isinstance(sizes, OpenVLAConfig):
        exact = work.dtypes("decode").weights == "bf16"
        return {} if exact else {"prefix": _stack_in("bf16", sizes.prefix)}
    if not isinstance(sizes, PiConfig):
        return {}
    dropped, rows = {}, work.rows_in is not None
    if rows or work.precision in ("fp8", "nvfp4"):
        dropped["prefix"] = _stack_in("bf16", sizes.prefix, with_o=rows)
    if rows or work.dtypes("encode").weights == "fp8":
        dropped["encoder"] = _encoder_in("bf16", sizes.vision, with_o=rows)
    if work.dtypes("denoise").weights != "bf16":
        dropped["expert"] = _stack_in("bf16", sizes.expert)
    return dropped


def _building(sizes: Sizes, work: Work) -> int:
    """Return the temporaries of quantisation. Fusing needs a matrix too, but before the pool and the buffers
    exist."""
    if isinstance(sizes, SmolVLAConfig | PlainSizes):
        return 0
    kinds = (work.dtypes(name).weights for name in ("encode", "prefill", "denoise", "decode"))
    return max(QUANTISING.get(kind, 0) for kind in kinds)


def _stack_in(kind: str, g: GemmaConfig, with_o: bool = True) -> int:
    return g.depth * sum(_small(*m, kind) for m in _matrices(g, with_o))


def _encoder_in(kind: str, v: VisionConfig, with_o: bool = False) -> int:
    matrices = [(3 * v.width, v.width), (v.mlp, v.width), (v.width, v.mlp)]
    return v.depth * sum(_small(*m, kind) for m in [*matrices, *([(v.width, v.width)] if with_o else [])])


def _qkv(g: GemmaConfig) -> int:
    return (g.heads + 2 * g.kv_heads) * g.head_dim


def _matrices(g: GemmaConfig, with_o: bool) -> list[tuple[int, int]]:
    matrices = [(_qkv(g), g.width), (2 * g.mlp, g.width), (g.width, g.mlp)]
    return [*matrices, (g.width, g.heads * g.head_dim)] if with_o else matrices


def _small(rows: int, columns: int, kind: str) -> int:
    if kind == "bf16":
        return 2 * rows * columns
    if kind == "int4":
        groups = -(-columns // GROUP)
        return rows * groups * (GROUP // 2 + 4)
    if kind == "fp4":  # scales of groups are in tiles of 128 rows
        return rows * (columns // 2 + 4) + -(-rows // 128) * 128 * columns // 16
    return rows * (columns + 4)


def _buffers(sizes: Sizes, work: Work, slots: int, seats: int) -> int:
    if isinstance(sizes, OpenVLAOFTConfig):  # a layer's temporaries of one pass
        g, rows = sizes.prefix, sizes.max_tokens + sizes.horizon * sizes.action_dim + 1
        return 2 * rows * (8 * g.width + 3 * g.mlp) + _plain_tower(sizes.siglip, work.views)
    if isinstance(sizes, OpenVLAConfig):
        rows, g = sizes.max_tokens + 16, sizes.prefix
        stack = 2 * rows * (3 * g.width + 2 * _qkv(g) + 3 * g.mlp)
        towers = sum(_plain_tower(v, 1) for v in (sizes.dino, sizes.siglip))
        return stack + max(towers, 0) + 2 * slots * sizes.max_tokens * g.width
    if isinstance(
        sizes, GrootConfig
    ):  # a layer's temporaries of the longest prefix, and the images' features
        rows, t = sizes.max_tokens, sizes.text
        features = 2 * slots * sizes.views * sizes.image_tokens * t.width * (1 + len(sizes.taps))
        return 2 * rows * (8 * t.width + 3 * t.mlp) + _plain_tower(sizes.vision, 1) + features
    if isinstance(sizes, MimicVideoConfig):  # keys and values of a chunk, and a block's temporaries
        v, d, rows = sizes.video, sizes.decoder, sizes.settings.rows
        return 2 * rows * (2 * d.depth * d.heads * d.head_dim + 10 * v.width + v.mlp)
    if isinstance(sizes, FastWAMConfig):  # a layer's temporaries, and those of the picture's first level
        widest, tokens = (
            max(sizes.video.mlp, 4 * sizes.heads * sizes.head_dim),
            sizes.image_tokens + sizes.max_prompt,
        )
        places = sizes.image_height * sizes.image_width // sizes.vae.patch**2
        return 2 * tokens * (8 * sizes.video.width + 3 * widest) + 2 * places * 6 * sizes.vae.width
    if isinstance(sizes, XVLAConfig):  # a step's temporaries, and those of the first stage of the images
        rows = sizes.horizon + sizes.prefix_rows + sizes.prompts
        places = work.views * (sizes.image_size // 4) ** 2
        return 2 * rows * (8 * sizes.width + sizes.mlp) + 2 * places * 12 * sizes.vision.widths[0]
    return _flow_buffers(sizes, work, slots, seats)


def _flow_buffers(sizes: PiConfig | PiFastConfig | SmolVLAConfig, work: Work, slots: int, seats: int) -> int:
    g, v = sizes.prefix, sizes.vision
    attended, kv = g.heads * g.head_dim, 2 * g.kv_heads * g.head_dim
    rows = work.batch * sizes.max_tokens
    chain = 2 * rows * (2 * g.width + 3 * attended + 2 * kv + 3 * g.mlp + 2 * g.width)
    patches = work.views * work.batch * v.tokens
    if work.rows_in is not None:  # 8-bit rows, with a scale each, beside the exact ones
        chain += rows * (g.width + attended + g.mlp + 3 * 4)
        chain += patches * (v.width + v.mlp + 2 * 4)
    encode = patches * (4 * 3 * v.patch**2 + 4 * v.width + 2 * (g.width + 6 * v.width + v.mlp))
    tokens_kept = 2 * slots * (len(sizes.image_names) * sizes.image_tokens + 1) * g.width
    if isinstance(sizes, SmolVLAConfig):  # keys and values of cross layers, and joined patches
        tokens_kept += kv_bytes(sizes, slots) // 2 + 2 * patches * v.width
    if isinstance(sizes, PiFastConfig):  # keys and values of as many actions
        tails = kv_bytes(sizes, slots) * sizes.max_action_tokens // sizes.max_tokens
        return chain + encode + tokens_kept + tails
    e, chunks = sizes.expert, work.batch + seats
    tokens = chunks * ((work.chunk or sizes.horizon) + 1)
    denoise = tokens * (2 * (3 * e.width + e.mlp + 2 * _qkv(e)) + 4 * 6 * sizes.action_dim)
    if seats or work.batch > 2:
        denoise += 2 * tokens * (2 * e.mlp + 4 * e.width)
    tables = 4 * work.steps * e.depth * (8 * e.width + _qkv(e) + 2 * e.mlp) if sizes.kind == "pi05" else 0
    return chain + encode + tokens_kept + denoise + tables


def _plain_tower(v: VisionConfig, images: int) -> int:
    """Return a layer's temporaries in plain torch, which a graph keeps."""
    rows = images * v.tokens
    return rows * (2 * (8 * v.width + 2 * v.mlp) + 4 * 3 * v.patch**2)
