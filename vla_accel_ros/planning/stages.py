"""The launches of an engine's stages, derived from a trace of a family's plain modules (planning.trace).

Three ways of launching turn the same trace into operations. *Plain*, of OpenVLA's image encoders: every
operation is a launch. *Fused*, of captured stacks: products of one input are one product, what is between two
products is one pass over the rows or part of a product, and attention is one launch. *Narrow*, of an action
expert's few rows: products and attentions alone, which include norms and activations. In the engine's 8-bit
rows (w8a8) the product includes the gate, and what is not a norm's result is rounded by a pass of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.gemma import KV, rotary_tables, rotate
from vla_accel_ros.models.layers.gemma import attention as attend
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning import plain
from vla_accel_ros.planning.networks import network
from vla_accel_ros.planning.operations import (
    PACKED,
    PLAIN,
    SDPA,
    Kind,
    Op,
    of_rows,
    one_pass,
    product,
)
from vla_accel_ros.planning.trace import Call, trace
from vla_accel_ros.planning.work import ACTION_TOKENS, EXACT, Dtypes, PlainSizes, Sizes, Stages, Work

MOST_NARROW = 128
"""Most rows that are denoised by five launches a layer (engine.stages.denoise.wide)."""
ROUND = 16
"""OpenVLA's rows of a segment are padded to a multiple of this."""
JOINED = {"q_proj": "qkv", "gate_proj": "gate and up", "out_proj": "o", "o_proj": "o", "down_proj": "down"}
OUTPUTS, ROUNDED = ("o", "proj"), ("o", "down", "fc2")
NORMS, MOVES = ("mean.", "native_layer_norm."), ("cat.", "mul.Tensor")


def operations(sizes: Sizes, work: Work) -> Stages:
    """Return the operations of every stage, for one frame and one chunk of each of work.batch robots; decode:
    for one token each."""
    if isinstance(sizes, PiConfig | PiFastConfig):
        return _pi(sizes, work)
    if isinstance(sizes, PlainSizes):
        return _plain_stages(sizes, work)
    return _openvla(sizes, work) if isinstance(sizes, OpenVLAConfig) else _smolvla(sizes, work)


def _pi(sizes: PiConfig | PiFastConfig, work: Work) -> Stages:
    batch, d = work.batch, work.dtypes
    rows8, everywhere = work.rows_in is not None, work.rows_everywhere
    frame = work.views * sizes.vision.tokens
    rows = frame + min(work.bucket, sizes.max_prompt)
    ours = of_rows if rows8 else list
    encode = _fused(_traced(sizes, "encode", work.views * batch), d("encode"), batch, rows8, rows8)
    whole = rows8 or work.precision.startswith("all-")
    prefill = _fused(_traced(sizes, "prefill", batch, rows), d("prefill"), batch, whole, rows8)
    denoise = _pi_step(sizes, work, frame) if isinstance(sizes, PiConfig) else []
    token = _traced(sizes, "decode", batch, frame + work.prompt)
    decode = _fused(token, d("decode"), batch, rounds=everywhere, by="" if everywhere else PACKED)
    return {
        "encode": tuple(ours(encode)),
        "prefill": tuple(ours(prefill)),
        "denoise": tuple(op.times(work.steps) for op in ours(denoise)),
        "decode": tuple(ours(decode)),
    }


def _pi_step(sizes: PiConfig, work: Work, frame: int) -> list[Op]:
    batch, chunk = work.batch, work.chunk or sizes.horizon
    step = _traced(sizes, "denoise", batch, frame + work.prompt, chunk)
    # staggered chunks are exact
    exact = work.rows_everywhere and batch > 1
    dtypes = EXACT if exact else work.dtypes("denoise")
    tokens = batch * (chunk + (sizes.kind == "pi0"))
    if work.rows_everywhere and dtypes != EXACT:
        return [op for op in _fused(step, dtypes, batch, rounds=True) if op.name != "place"]
    if tokens <= MOST_NARROW:
        return _narrow(_fused(step, dtypes, batch))
    return [op for op in _fused(step, EXACT, batch) if op.name != "place"]


def _openvla(sizes: OpenVLAConfig, work: Work) -> Stages:
    """work.views and work.steps are not used."""
    rows8, batch = work.rows_everywhere, work.batch
    whole = rows8 or work.precision.startswith("all-")
    rows = -(-(sizes.dino.tokens + work.prompt + ACTION_TOKENS - 1) // ROUND) * ROUND
    ours = of_rows if rows8 else list
    prefill = _fused(_traced(sizes, "prefill", batch, rows), work.dtypes("prefill"), batch, whole, by=PACKED)
    decoding = work.dtypes("prefill") if whole else work.dtypes("decode")
    decode = _fused(_traced(sizes, "decode", batch, rows - 1), decoding, batch, by=PACKED)
    towers = EXACT if rows8 else work.dtypes("encode")
    encode = _plain(_traced(sizes, "encode", batch), towers)
    return {
        "encode": tuple(encode),
        "prefill": tuple(ours(prefill)),
        "denoise": (),
        "decode": tuple(ours(decode)),
    }


def _smolvla(sizes: SmolVLAConfig, work: Work) -> Stages:
    """As _pi, with the products of cross layers' keys and values, once a frame, at the end of prefill."""
    batch, chunk = work.batch, work.chunk or sizes.horizon
    frame = work.views * sizes.image_tokens + 1
    prefill = _traced(sizes, "prefill", batch, frame + min(work.bucket, sizes.max_prompt))
    last = max(index for index, call in enumerate(prefill) if call.weight.endswith("v_proj.weight"))
    queries = max(index for index, call in enumerate(prefill) if call.weight.endswith("q_proj.weight"))
    step, crossed = list[Call](), list[Call]()
    for call in _traced(sizes, "denoise", batch, frame + work.prompt, chunk):
        of_prefix = call.weight.endswith(("k_proj.weight", "v_proj.weight")) and call.rows != batch * chunk
        (crossed if of_prefix else step).append(call)
    fused = _fused(step, EXACT, batch)
    denoise = _narrow(fused) if batch * chunk <= MOST_NARROW else fused
    kv = _collapsed(_product("crossed k, v", call, call.columns, EXACT) for call in crossed)
    calls = (*prefill[:queries], *prefill[queries + 1 : last + 1])
    return {
        "encode": tuple(_fused(_traced(sizes, "encode", work.views * batch), EXACT, batch, by=SDPA)),
        "prefill": (*_fused(calls, EXACT, batch), *kv),
        "denoise": tuple(op.times(work.steps) for op in denoise if op.name != "place"),
        "decode": (),
    }


def _plain_stages(sizes: PlainSizes, work: Work) -> Stages:
    """Plain stages; frames and chunks of several robots are computed one by one."""
    ops = {
        name: tuple(op.times(work.batch) for op in _plain(calls, EXACT))
        for name, calls in plain.calls(network(sizes), sizes, work).items()
    }
    steps = {"denoise": tuple(op.times(work.steps) for op in ops["denoise"])} if "denoise" in ops else {}
    return {**ops, **steps, "decode": ()}


@lru_cache(64)
def _traced(sizes: Any, stage: str, batch: int, rows: int = 0, chunk: int = 0) -> tuple[Call, ...]:
    """Trace a stage. batch: robots, of `encode` images. rows: of a prefix; chunk: actions."""
    model, half = network(sizes), torch.bfloat16
    width = sizes.prefix.width

    def kv() -> KV:
        g = sizes.prefix
        return KV(*(torch.empty(g.depth, batch, g.kv_heads, rows, g.head_dim, dtype=half) for _ in range(2)))

    def encode() -> None:
        vision = sizes.dino if isinstance(sizes, OpenVLAConfig) else sizes.vision
        side, channels = vision.image_size, 6 if isinstance(sizes, OpenVLAConfig) else 3
        model.encode(torch.empty(batch, channels, side, side, dtype=half))

    def prefill() -> None:
        if isinstance(sizes, PiConfig | PiFastConfig):
            _without_the_end(model.language_model, torch.empty(batch, rows, width, dtype=half))
        elif isinstance(sizes, OpenVLAConfig):
            hidden, _ = model.prefix(torch.empty(batch, rows, width, dtype=half))
            model.logits(hidden[:, -ACTION_TOKENS:])
        else:
            words = torch.zeros(batch, rows - 1 - rows // 2, dtype=torch.int64)
            images = torch.empty(batch, rows // 2, width, dtype=half)
            model.prefix(model.embed(images, words, torch.empty(batch, sizes.state_dim)))

    def denoise() -> None:
        state = torch.empty(batch, sizes.state_dim)
        model.velocity(torch.empty(batch, chunk, sizes.action_dim), torch.empty(batch), state, kv())

    def decode() -> None:
        hidden, _ = model.extend(torch.empty(batch, 1, width, dtype=half), kv())
        model.logits(hidden)

    stages: dict[str, Callable[[], None]] = {
        "encode": encode, "prefill": prefill, "denoise": denoise, "decode": decode
    }  # fmt: skip
    calls = trace(model, stages[stage])
    return _folded(calls, batch) if stage == "denoise" else calls


def _folded(calls: Iterable[Call], batch: int) -> tuple[Call, ...]:
    """Return a step as models.pi.folding leaves it: what depends on the time alone is a table, and pi0's
    action_time_mlp_in is part of action_in_proj, in front of action_time_mlp_out in the expert's dtype."""
    calls = (call for call in calls if not call.weight or call.rows > batch)
    return tuple(
        replace(call, dtype=torch.bfloat16) if call.weight.startswith("action_time_mlp_out") else call
        for call in calls
        if not call.weight.startswith("action_time_mlp_in")
    )


def _without_the_end(stack: Any, x: torch.Tensor) -> None:
    """Run a prefix stack as stages do: of its last layer only keys and values."""
    tables = rotary_tables(torch.arange(x.shape[1])[None], stack.head_dim, x.dtype)
    *layers, last = stack.layers
    for layer in layers:
        x, _, _ = layer(x, tables, lambda q, k, v: attend(q, k, v, None, ()))
    normed, _ = last.input_layernorm(x)
    keys, _ = (
        projection(normed).unflatten(-1, (-1, stack.head_dim)).transpose(1, 2)
        for projection in (last.self_attn.k_proj, last.self_attn.v_proj)
    )
    rotate(keys, *tables)


def _collapsed(ops: Iterable[Op]) -> list[Op]:
    """Return each operation once, with its count."""
    return [op.times(count) for op, count in Counter(ops).items()]


def _dtypes(call: Call, dtypes: Dtypes) -> tuple[str, str]:
    if call.dtype == torch.float32:
        return "fp32", "fp32"
    within = ".layers." in call.weight or ".blocks." in call.weight
    return (dtypes.weights, dtypes.compute) if within else ("bf16", "bf16")


def _plain(calls: Iterable[Call], dtypes: Dtypes) -> list[Op]:
    """Return one launch for every operation."""
    ops: list[Op] = []
    for call in calls:
        if call.weight:
            name = call.weight.split(".")[-2]
            exact = JOINED.get(name, name) in OUTPUTS
            ops += [*_cut(call, PLAIN), _product(name, call, call.columns, EXACT if exact else dtypes)]
        elif call.heads:
            ops.append(_attention(call, by=SDPA))
        else:
            moved = float(call.moved_bytes)
            ops += [Op(call.name, Kind.PASS, 1, moved_bytes=moved, by=PLAIN)] * call.launches
    return _collapsed(ops)


def _fused(
    calls: Iterable[Call], dtypes: Dtypes, batch: int, o: bool = True, rounds: bool = False, by: str = ""
) -> list[Op]:
    """Return products, attentions, and one pass between two of them where one is needed.

    batch: sequences. o: attention's output product is quantised too. rounds: quantised products are of 8-bit
    rows. by: of attention.
    """
    ops: list[Op] = []
    group: list[Call] = []  # products of one input, which are one product
    between: list[str] = []
    scores: Call | None = None
    qkv: list[Call] = []
    for call in (*calls, None):
        if call is not None and not call.flops:
            between.append(call.name)
            continue
        if call is not None and call.weight and group and call.source == group[-1].source:
            group.append(call)
            continue
        if group:
            ops += _group(group, between, dtypes, o, rounds)
            qkv = group if len(group) > 1 else qkv
            group = []
        if call is None:
            break
        if any(name.startswith(NORMS) for name in between):
            ops.append(one_pass("norm", 1, call.rows, call.inner, call.inner))
        between = []
        if call.weight:
            group = [call]
            ops += _cut(call)
        elif call.heads:
            ops.append(_attention(call, by))
        elif scores is None:
            scores = call
        else:
            heads = qkv[0].columns // call.columns
            if call.rows == batch * heads and by == PACKED:  # keys of single rows are split, and joined after
                ops.append(one_pass("join", 1, batch, 2 * heads * call.columns, heads * call.columns))
            kv, moved = 4 * batch * call.inner * qkv[-1].columns, 4 * call.rows * call.columns
            whole = replace(call, heads=heads, weight_bytes=kv, moved_bytes=moved)
            ops.append(_attention(whole, by))
            scores = None
    return _collapsed(ops)


def _group(group: list[Call], after: list[str], dtypes: Dtypes, o: bool, rounds: bool) -> list[Op]:
    """Return the product of a group, and the passes that it needs. after: the operations until the next."""
    first, names = group[0], [call.weight.split(".")[-2] for call in group]
    name = "last k, v" if names[0] == "k_proj" else JOINED.get(names[0], names[0])
    columns, rows = sum(call.columns for call in group), first.rows
    op = _product(name, first, columns, dtypes if o or name not in OUTPUTS else EXACT)
    eight_bit = rounds and op.compute not in ("bf16", "fp32")
    ops = [op]
    if eight_bit and name in ROUNDED:
        ops.insert(0, one_pass("round", 1, rows, first.inner, first.inner, itemsize=1.5))
    if len(group) > 1 and any(call_name.startswith(MOVES) for call_name in after):
        if name == "gate and up":
            ops += [] if eight_bit else [one_pass("activation", 1, rows, columns, columns // 2)]
        else:
            ops.append(one_pass("place", 1, rows, columns, columns))
    return ops


def _cut(call: Call, by: str = "") -> list[Op]:
    """Return the pass that cuts images into patches, which a convolution includes."""
    is_cut = call.name.startswith("convolution")
    return [one_pass("cut", 1, call.rows, call.inner, call.inner, 2.5, by)] if is_cut else []


def _product(name: str, call: Call, columns: int, dtypes: Dtypes) -> Op:
    return product(name, 1, call.rows, columns, call.inner, *_dtypes(call, dtypes))


def _attention(call: Call, by: str = "") -> Op:
    sizes, kv, moved = (
        (call.rows, call.columns, call.inner),
        float(call.weight_bytes),
        float(call.moved_bytes),
    )
    kind = Kind.ATTENTION
    return Op("attention", kind, 1, *sizes, weight_bytes=kv, moved_bytes=moved, by=by, heads=call.heads)


def _narrow(ops: Iterable[Op]) -> list[Op]:
    """Return the launches for a few dozen rows."""
    launched = (op for op in ops if op.kind is not Kind.PASS)
    return [replace(op, kind=Kind.NARROW) if op.kind is Kind.DENSE else op for op in launched]
