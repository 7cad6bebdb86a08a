"""The engine's stages on this machine: how long each takes, and what the allocator held at most.

pi0 and pi0.5 as engine.stages has them, SmolVLA's plain functions captured, OpenVLA's towers and one packed
forward. Random weights at full size; times are medians of graph replays.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from full_size.policies import random_policy
from full_size.subjects import Ours, random_inputs, random_model
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning.families.find import Sizes
from vla_accel_ros.planning.families.openvla import ACTION_TOKENS
from vla_accel_ros.tools.tune.pieces import Body

Case = dict[str, Any]


def measured(
    sizes: Sizes, views: list[int], precisions: list[str], prompt: int, device: torch.device, runs: int
) -> Iterator[Case]:
    """Cases of a model: views, precision, ms by stage, and allocated_bytes at most where one is known."""
    found = (
        _pi(sizes, views, precisions, prompt, device, runs)
        if isinstance(sizes, PiConfig)
        else _openvla(sizes, prompt, device, runs)
        if isinstance(sizes, OpenVLAConfig)
        else _smolvla(sizes, views, prompt, device, runs)
    )
    yield from found
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _pi(
    sizes: PiConfig, views: list[int], precisions: list[str], prompt: int, device: torch.device, runs: int
) -> Iterator[Case]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_model(sizes, device).set_precision(dtype)
    for precision in precisions:
        for count in views:
            _reset(device)
            ours = Ours(model, random_inputs(sizes, count, prompt, device), precision=precision)
            ms = {name: _ms(run, device, runs) for name, run in ours.parts().items()}
            ms["whole"] = ms.pop("total")
            yield {
                "views": count,
                "precision": precision,
                "ms": ms,
                "allocated_bytes": _peak(device),
                "slots": 2,
            }
            del ours
            gc.collect()


@torch.inference_mode()
def _smolvla(
    sizes: SmolVLAConfig, views: list[int], prompt: int, device: torch.device, runs: int
) -> Iterator[Case]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    policy: Any = random_policy(sizes, device, dtype)
    pool = KVPool(sizes.prefix, 2, sizes.max_tokens, device, policy.kv_dtype)
    for count in views:
        stages = PlainStages(policy, pool)
        words = min(prompt, sizes.max_prompt)
        stages.build([count], [words], [10])
        with stages._observing, stages.prefix.call():
            stages.prefix.variant = count, words
            frame = _ms(stages.prefix.run, device, runs)
        step = _ms(stages.step.run, device, runs)
        yield {"views": count, "precision": "exact", "ms": {"frame": frame, "denoise": 10 * step}}


@torch.inference_mode()
def _openvla(sizes: OpenVLAConfig, prompt: int, device: torch.device, runs: int) -> Iterator[Case]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device("meta"):
        model = OpenVLA(sizes)
    model = model.to(dtype).to_empty(device=device).eval()
    for parameter in model.parameters():
        parameter.normal_(0.0, 0.02)
    side, g = sizes.dino.image_size, sizes.prefix
    pixels = torch.randn(1, 6, side, side, device=device).to(dtype)
    towers = Body(lambda: model.encode(pixels), device)
    new = sizes.dino.tokens + min(prompt, sizes.max_prompt) + ACTION_TOKENS - 1
    pool = KVPool(g, 2, new + ACTION_TOKENS, device, dtype)
    forward = PackedForward(model.language_model.model, g, new + ACTION_TOKENS)

    def rows(count: int) -> torch.Tensor:
        return torch.randn(1, count, g.width, device=device).to(dtype)

    forward([Segment(rows(new), causal=True, out=pool.span(0, 0, new))])
    assert forward.last is not None
    ms = {"encode": _ms(towers.run, device, runs), "prefill": _ms(forward.last.run, device, runs)}
    forward([Segment(rows(1), (pool.span(0, 0, new),), out=pool.span(0, new, new + 1))])
    ms["decode"] = _ms(forward.last.run, device, runs)
    yield {"views": 1, "precision": "exact", "ms": ms}


def _ms(run: Callable[[], object], device: torch.device, runs: int) -> float:
    for _ in range(3):
        run()
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - began)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize(device)
    return float(np.median([begin.elapsed_time(end) for begin, end in events]))


def _reset(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
