"""Stages with random weights whose activations have outlier columns: w8a8 against float32.

Random weights have no outliers, and 8 bits lose little on them. In trained transformers a few columns are
about 20 to 100 times larger than the others, the same ones in all layers of a stack, while the outputs are
ordinary (LLM.int8, arXiv 2208.07339; SmoothQuant, arXiv 2211.10438). Here 0.5 % of the columns of each width,
and at least one, get factors drawn log-uniformly from 20 to 100. What produces these columns (a norm's factor
and shift, a value's row, an up projection's row) is multiplied by them, and the columns of the matrix that
reads them are divided, so the network computes the same function. Only the image encoder's fc2, which reads a
gelu's output, has none. The calibration uses other images, words and noise than the comparison.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.tools.bench.subjects import Ours, plain, random_inputs, random_model
from vla_accel_ros.tools.calibrate.seen import of_runs

SHARE, LEAST, MOST = 0.005, 20.0, 100.0
LAYERS = 4
"""Of each stack on a CPU, of half the published widths."""
HALF = {"vision": (576, 2152), "prefix": (1024, 8192), "expert": (512, 2048)}
SMALL = {"vision": (64, 128), "prefix": (64, 256), "expert": (48, 96)}
SEEN, VIEWS, PROMPT = 2, 2, 20


def measure(draws: int, full: bool, small: bool, kinds: Sequence[str] = ("pi0", "pi05")) -> dict[str, Any]:
    """Cosines and relative errors of each draw. full: all layers; small: a toy's widths, too."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for kind, config in {"pi0": PI0, "pi05": PI05}.items():
        if kind not in kinds:
            continue
        for draw in range(draws):
            drawn = _drawn(sized(config, full, small), device, draw)
            rows += [{"kind": kind, "draw": draw, **row} for row in drawn]
            gc.collect()  # stages refer to each other, and another draw does not fit beside these
            torch.cuda.empty_cache()
    size = "published" if full else "a toy's" if small else f"half the widths, {LAYERS} layers of each stack"
    return {"size": size, "share": SHARE, "factors": [LEAST, MOST], "rows": rows}


def sized(config: PiConfig, full: bool, small: bool) -> PiConfig:
    """Return the sizes that this machine can compute."""
    if full:
        return config
    parts: dict[str, Any] = {name: getattr(config, name) for name in ("vision", "prefix", "expert")}
    sizes = SMALL if small else HALF
    for name, (width, mlp) in sizes.items():
        heads = {} if name == "vision" else {"head_dim": 16 if small else 256}
        parts[name] = replace(parts[name], width=width, mlp=mlp, heads=4, **heads)
    if small:
        parts["vision"] = replace(parts["vision"], image_size=28)
    parts = {name: replace(part, depth=2 if small else LAYERS) for name, part in parts.items()}
    return replace(config, vocab=1024, **parts)


@torch.inference_mode()
def _drawn(config: PiConfig, device: torch.device, seed: int) -> list[dict[str, Any]]:
    model = random_model(config, device, seed)
    given = random_inputs(config, VIEWS, PROMPT, device, 100 + seed)
    exact = _parts(Ours(model, given))
    found = {"w8a8, no outliers": _parts(Ours(model, given, precision="w8a8"))}
    add_outliers(model, seed)

    def run() -> None:
        for other in range(SEEN):
            plain(model, random_inputs(config, VIEWS, PROMPT, device, 200 + SEEN * seed + other))()

    made = of_runs(model, run, SEEN)
    for name, file in (("w8a8", None), ("w8a8, calibrated", made)):
        int8 = Int8(file, denoise=True)
        found[name] = _parts(Ours(model, given, precision="w8a8", int8=int8))
    # Values are with the outliers' factors; all else is what it was.
    wanted = {**exact, "values": _parts(Ours(model, given))["values"]}
    rows = []
    for name, made_by in found.items():
        row: dict[str, Any] = {"precision": name}
        own = exact if name == "w8a8, no outliers" else wanted
        for part, values in made_by.items():
            row[part] = {
                "cosine": float(f"{_cosine(values, own[part]):.6f}"),
                "error": float(f"{float((values - own[part]).norm() / own[part].norm()):.4g}"),
            }
        rows.append(row)
    return [{**row, "stay_exact": len(made.exact())} for row in rows]


def _parts(ours: Ours) -> dict[str, Tensor]:
    """Return the outputs of the stages, float64, flat."""
    kv = ours.stages.pool.view(1, ours.lengths[0])
    made = {"tokens": ours.stages.encode(VIEWS).tokens, "keys": kv.k, "values": kv.v, "actions": ours.actions}
    return {name: values.detach().double().flatten().clone() for name, values in made.items()}


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


@torch.no_grad()
def add_outliers(model: Pi, seed: int) -> None:
    """Add outlier channels to every input of a matrix product except fc2's."""
    rng = np.random.default_rng(seed)
    tower = model.paligemma_with_expert.paligemma.model.vision_tower.vision_model
    own = _factors(tower.post_layernorm.weight, rng)
    for layer in cast(Any, tower.encoder.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for norm, read in (
            (layer.layer_norm1, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.layer_norm2, (mlp.fc1,)),
        ):
            norm.weight *= own
            norm.bias *= own
            _divide(own, read)
        heads = _factors(attention.v_proj.bias, rng)
        attention.v_proj.weight *= heads[:, None]
        attention.v_proj.bias *= heads
        _divide(heads, (attention.out_proj,))
    # The expert reads the prefix's values, layer by layer.
    values = [
        _factors(cast(Any, layer).self_attn.v_proj.weight[:, 0], rng) for layer in model.language_model.layers
    ]
    for stack in (model.language_model, model.expert):
        layers = cast(Any, stack.layers)
        own = _factors(layers[0].self_attn.q_proj.weight[0], rng)
        for layer, kv in zip(layers, values, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            _scale_norm(layer.input_layernorm, own)
            _divide(own, (attention.q_proj, attention.k_proj, attention.v_proj))
            _scale_norm(layer.post_attention_layernorm, own)
            _divide(own, (mlp.gate_proj, mlp.up_proj))
            attention.v_proj.weight *= kv[:, None]
            width = attention.o_proj.in_features
            groups = width // len(kv)  # heads that read the same values
            spread = kv.view(-1, attention.head_dim).repeat_interleave(groups, 0).flatten()
            _divide(spread, (attention.o_proj,))
            fed = _factors(mlp.up_proj.weight[:, 0], rng)
            mlp.up_proj.weight *= fed[:, None]
            _divide(fed, (mlp.down_proj,))


def _factors(like: Tensor, rng: np.random.Generator) -> Tensor:
    """Draw the factors of the columns of a tensor [K]."""
    made, count = np.ones(len(like)), max(1, round(SHARE * len(like)))
    chosen = rng.choice(len(like), count, replace=False)
    made[chosen] = np.exp(rng.uniform(np.log(LEAST), np.log(MOST), count))
    return torch.from_numpy(made).to(like)


def _divide(factors: Tensor, read: tuple[Any, ...]) -> None:
    for linear in read:
        linear.weight /= factors


def _scale_norm(norm: Any, factors: Tensor) -> None:
    """Scale a norm by its 1 + weight, or a modulated norm by the scale and shift rows of its dense layer."""
    if not norm.modulated:
        norm.weight.copy_((1.0 + norm.weight) * factors - 1.0)
        return
    width = len(factors)
    norm.dense.weight[: 2 * width] *= factors.repeat(2)[:, None]
    norm.dense.bias[: 2 * width] *= factors.repeat(2)
    norm.dense.bias[:width] += factors - 1.0
