"""pi0 and pi0.5: SigLIP, a prefix stack, an action expert for every step; text from the prefix stack.

The operations are those that engine.stages captures. Encode and prefill are products with one pass between
two, and their last layer computes only keys and values. Denoising a few dozen rows takes five launches a
layer; more rows are products with passes.
"""

from __future__ import annotations

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.planning.families.stacks import (
    decoder_layers,
    decoder_parameters,
    narrow_layers,
    patches,
    rows_layers,
    tower_layers,
    vision_parameters,
)
from vla_accel_ros.planning.families.work import EXACT, Stages, Work
from vla_accel_ros.planning.operations import PACKED, Kind, Op, of_rows, one_pass, product

MOST_NARROW = 128
"""Most rows that are denoised by five launches a layer (engine.stages.denoise.wide)."""
LACKING: tuple[str, ...] = ()
"""The engine's precisions that the family lacks (engine.options)."""


def stages(config: PiConfig, work: Work) -> Stages:
    """Return the operations for one frame and one chunk of each of work.batch robots; decode: for one token
    each."""
    made = {
        "encode": _encode(config, work),
        "prefill": _prefill(config, work),
        "denoise": _denoise(config, work),
        "decode": _decode(config, work),
    }
    ours = of_rows if work.rows_in is not None else list
    return {name: tuple(ours(ops)) for name, ops in made.items()}


def _encode(config: PiConfig, work: Work) -> list[Op]:
    v, images, int8 = config.vision, work.views * work.batch, work.rows_in is not None
    rounding = one_pass("round", 2 * v.depth, images * v.tokens, v.width, v.width, itemsize=1.5)
    return [
        *patches(v, images),
        *tower_layers(v, v.depth, images, v.tokens, work.dtypes("encode"), 2, 1, everywhere=int8),
        *((rounding,) if int8 else ()),
        one_pass("norm", 1, images * v.tokens, v.width, v.width),
        product("projector", 1, images * v.tokens, config.prefix.width, v.width),
    ]


def _prefill(config: PiConfig, work: Work) -> list[Op]:
    g, d = config.prefix, work.dtypes("prefill")
    rows = work.views * config.vision.tokens + min(work.bucket, config.max_prompt)
    kv = 2 * g.kv_heads * g.head_dim
    everywhere = work.precision.startswith("all-")
    many = work.batch * rows
    if work.rows_in is not None:
        layers = rows_layers(g, g.depth - 1, rows, rows, d, placed=True, batch=work.batch)
    else:
        layers = decoder_layers(g, g.depth - 1, rows, rows, d, work.batch, everywhere)
    return [
        one_pass("embed", 2, many, g.width, g.width),
        *layers,
        one_pass("norm", 1, many, g.width, g.width),
        product("last k, v", 1, many, kv, g.width, d.weights, d.compute),
        one_pass("place", 1, many, kv, kv),
    ]


def _denoise(config: PiConfig, work: Work) -> list[Op]:
    g, pi0, d = config.expert, config.kind == "pi0", work.dtypes("denoise")
    tokens = (work.chunk or config.horizon) + pi0
    keys = work.views * config.vision.tokens + work.prompt + tokens
    many = work.batch * tokens
    if work.rows_everywhere and work.batch > 1:  # staggered chunks are exact
        d = EXACT
    if work.rows_everywhere and d != EXACT:
        layers, ends_kind = rows_layers(g, g.depth, tokens, keys, d, placed=False), Kind.NARROW
    elif many <= MOST_NARROW:
        layers = narrow_layers(g, g.depth, tokens, keys, d, work.batch)
        ends_kind = Kind.NARROW
    else:
        layers, ends_kind = (
            decoder_layers(g, g.depth, tokens, keys, work.dtypes("wide"), work.batch),
            Kind.DENSE,
        )
        layers = [op for op in layers if op.name != "place"]
    ends = [
        product("action in", 1, many, g.width, config.action_dim, "fp32", kind=ends_kind),
        product("action out", 1, many, config.action_dim, g.width, "fp32", kind=ends_kind),
    ]
    if pi0:
        ends.append(product("time", 1, many, g.width, g.width, kind=ends_kind))
    return [op.times(work.steps) for op in (*layers, *ends)]


def _decode(config: PiConfig, work: Work) -> list[Op]:
    g, d = config.prefix, work.dtypes("decode")
    keys = work.views * config.vision.tokens + work.prompt + 1
    if work.rows_everywhere:
        layers = rows_layers(g, g.depth, 1, keys, d, placed=True, batch=work.batch)
    else:
        layers = decoder_layers(g, g.depth, 1, keys, d, work.batch, everywhere=True, by=PACKED)
    return [
        *layers,
        one_pass("norm", 1, work.batch, g.width, g.width),
        product("head", 1, work.batch, config.vocab, g.width),
    ]


def weight_parts(config: PiConfig) -> dict[str, int]:
    """Return the bytes of the parameters as loaded in bfloat16, by part of the model; what openpi keeps in
    float32 is in float32. modulation: the layers that compute scale, shift and gate of pi0.5's norms from the
    flow time."""
    p, e, v = config.prefix, config.expert, config.vision
    embeddings, vision = vision_parameters(v)
    norms, modulation = (2 * p.depth + 1) * p.width, 0
    ends = (config.action_dim + 1) * e.width + (e.width + 1) * config.action_dim
    if config.kind == "pi05":
        modulation = (2 * e.depth + 1) * 3 * e.width * (e.width + 1)
        ends += 2 * e.width * (e.width + 1)
    else:
        norms += (2 * e.depth + 1) * e.width
        ends += (config.state_dim + 1) * e.width + (2 * e.width + 1) * e.width + (e.width + 1) * e.width
    return {
        "words": 2 * config.vocab * p.width,
        "encoder": 2 * (vision + (v.width + 1) * p.width) + 4 * embeddings,
        "prefix": 2 * p.depth * decoder_parameters(p),
        "expert": 2 * e.depth * decoder_parameters(e),
        "modulation": 4 * modulation,
        "norms and ends": 4 * (norms + ends),
    }
