"""SmolVLA: SigLIP at 512 pixels, a short Llama stack, an action expert; all of it plain torch, captured.

Nothing is fused: a norm is eight passes over the rows, a rotation nine, and projections are separate
products. So most of the time of its few rows is launch overhead, which the passes here count.
"""

from __future__ import annotations

from vla_accel_ros.models.config import LlamaConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning.families.stacks import (
    decoder_parameters,
    patches,
    tower_layers,
    vision_parameters,
)
from vla_accel_ros.planning.families.work import ENGINE_PRECISIONS, Stages, Work
from vla_accel_ros.planning.operations import BATCHED, PLAIN, Op, one_pass, product

NORM, ROTATION = 8, 9
"""Passes of a norm and of a rotation as models.smolvla.stack writes them."""
ATTENDING = 11
"""Passes of a written-out attention, besides its two products."""
VISION_PASSES = 4
"""Passes of a layer, besides its gelu: two norms, two sums."""
JOINING = 5 + 19
"""Passes of a prefix outside of the layers: embedding and joining; masks, tables and the last norm."""
ENDS = 53
"""Passes of a step outside of the layers: 45 of models.smolvla.model.velocity, 8 of the stage around it."""
LACKING = tuple(name for name in ENGINE_PRECISIONS if name != "exact")
"""The engine's precisions that the family lacks (engine.options)."""


def stages(config: SmolVLAConfig, work: Work) -> Stages:
    """Return the operations for one frame and one chunk of each of work.batch robots, computed one after
    another."""
    v, g, e = config.vision, config.prefix, config.expert
    d = work.dtypes("prefill")
    rows = work.views * config.image_tokens + min(work.prompt, config.max_prompt) + 1
    chunk = work.chunk or config.horizon
    seen = work.views * v.tokens
    encode = [
        *patches(v, work.views, "bf16"),
        *tower_layers(v, v.depth, work.views, v.tokens, work.dtypes("encode"), VISION_PASSES, 3, plain=True),
        one_pass("gelu", v.depth, seen, v.mlp, v.mlp, by=PLAIN),
        one_pass("last norm, shuffle", 5, seen, v.width, v.width, by=PLAIN),
        product("connector", 1, seen // config.shuffle**2, g.width, v.width * config.shuffle**2),
    ]
    prefill = [
        *_layers(g, g.depth, rows, rows, g.width, d.weights, d.compute),
        one_pass("joining, masks, tables, norm", JOINING, rows, g.width, g.width, by=PLAIN),
    ]
    within = sum(config.attends_itself(layer) for layer in range(e.depth))
    d, kv = work.dtypes("denoise"), e.kv_heads * e.head_dim
    step = [
        *_layers(e, within, chunk, rows + chunk, e.width, d.weights, d.compute),
        one_pass("joining keys, values", 2 * within, rows + chunk, kv, kv, by=PLAIN),
        *_crossing(e, e.depth - within, chunk, rows, d.weights, d.compute),
        product("action in", 1, chunk, e.width, config.action_dim, "fp32"),
        product("time", 1, chunk, e.width, 2 * e.width, "fp32"),
        product("time", 1, chunk, e.width, e.width, "fp32"),
        product("action out", 1, chunk, config.action_dim, e.width, "fp32"),
        one_pass("time, masks, tables, norm, solver", ENDS, chunk, e.width, e.width, by=PLAIN),
    ]
    made = {"encode": encode, "prefill": prefill, "denoise": [op.times(work.steps) for op in step]}
    return {
        **{name: tuple(op.times(work.batch) for op in ops) for name, ops in made.items()},
        "decode": (),
    }


def _layers(
    g: LlamaConfig, layers: int, rows: int, keys: int, kv_width: int, weights: str, compute: str
) -> list[Op]:
    heads, kv = g.heads * g.head_dim, g.kv_heads * g.head_dim
    turned = heads + kv
    return [
        one_pass("norm", 2 * NORM * layers, rows, g.width, g.width, itemsize=3.0, by=PLAIN),
        product("q", layers, rows, heads, g.width, weights, compute),
        product("k, v", 2 * layers, rows, kv, kv_width, weights, compute),
        one_pass("rotation", 2 * ROTATION * layers, rows, turned // 2, turned // 2, itemsize=4.0, by=PLAIN),
        *_attended(g, layers, rows, keys),
        product("o", layers, rows, g.width, heads, weights, compute),
        *_mlp(g, layers, rows, weights, compute),
    ]


def _crossing(g: LlamaConfig, layers: int, rows: int, keys: int, weights: str, compute: str) -> list[Op]:
    """Return the operations of cross layers, which project the prefix's keys and values."""
    heads, kv = g.heads * g.head_dim, g.kv_heads * g.head_dim
    return [
        one_pass("norm", 2 * NORM * layers, rows, g.width, g.width, itemsize=3.0, by=PLAIN),
        product("q", layers, rows, heads, g.width, weights, compute),
        product("k, v", 2 * layers, keys, kv, kv, weights, compute),
        one_pass("past", 2 * layers, keys, kv, kv, by=PLAIN),
        one_pass("rotation", ROTATION * layers, rows, heads, heads, itemsize=4.0, by=PLAIN),
        *_attended(g, layers, rows, keys),
        product("o", layers, rows, g.width, heads, weights, compute),
        *_mlp(g, layers, rows, weights, compute),
    ]


def _attended(g: LlamaConfig, layers: int, rows: int, keys: int) -> list[Op]:
    """Return a written-out attention: float32 scores in memory, from an exact product, and weighted
    values."""
    many, head = g.heads * rows, g.head_dim
    return [
        product("scores", layers, many, keys, head, "fp32", by=BATCHED),
        product("weighted", layers, many, head, keys, by=BATCHED),
        one_pass("scores", ATTENDING * layers, g.heads * rows, keys, keys, itemsize=4.0, by=PLAIN),
    ]


def _mlp(g: LlamaConfig, layers: int, rows: int, weights: str, compute: str) -> list[Op]:
    return [
        product("gate, up", 2 * layers, rows, g.mlp, g.width, weights, compute),
        one_pass("activation, sums", 4 * layers, rows, g.mlp, g.mlp, by=PLAIN),
        product("down", layers, rows, g.width, g.mlp, weights, compute),
    ]


def weight_bytes(config: SmolVLAConfig) -> int:
    """Return the bytes of the parameters as loaded in bfloat16; state, action and time projections are
    float32."""
    g, e = config.prefix, config.expert
    embeddings, vision = vision_parameters(config.vision)
    half = embeddings + vision + config.vision.width * config.shuffle**2 * g.width
    half += config.vocab * g.width + g.depth * (decoder_parameters(g) + 2 * g.width) + g.width
    kv = e.kv_heads * e.head_dim
    crossing = sum(not config.attends_itself(layer) for layer in range(e.depth))
    half += e.depth * (decoder_parameters(e) + 2 * e.width) + e.width + crossing * 2 * kv * (kv - e.width)
    ends = (config.state_dim + 1) * g.width + (config.action_dim + 1) * e.width
    ends += (e.width + 1) * config.action_dim + (2 * e.width + 1) * e.width + (e.width + 1) * e.width
    return 2 * half + 4 * ends
