"""Time the engine's stages on this machine, and measure the allocator's peak.

pi0, pi0.5 and SmolVLA as in engine.stages, OpenVLA's towers and one packed forward. Full size with random
weights; times are medians of graph replays.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.precision import EXACT, check
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.measure import attentions, measure, shapes
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.work import ACTION_TOKENS, PlainSizes, Sizes, Work
from vla_accel_ros.tools.bench.planned import compared, counted, memory_row
from vla_accel_ros.tools.bench.subjects import (
    Ours,
    random_inputs,
    random_model,
    random_network,
    random_smolvla,
)
from vla_accel_ros.tools.tune.pieces import Body, times_ms

Case = dict[str, Any]


LEAST_S = {"pi0": 8.0, "pi05": 8.0, "openvla": 8.0, "smolvla": 6.0}
"""Seconds that a model's stages take to build; some 5 on an H200."""
DTYPES = ("bf16", "fp8", "int8")


def against_plans(
    models: Mapping[str, Sizes],
    base: Device,
    device: torch.device,
    views: Iterable[int] = (1, 2, 3),
    precisions: Iterable[str] = (EXACT, "fp8", "int8"),
    prompt: int = 20,
    runs: int = 50,
    seconds: float = 230.0,
    say: Callable[[str], object] = print,
) -> tuple[Device, dict[str, Any]]:
    """Return this machine as a Device from micro-benchmarks, and measured stages beside the plans from that
    device and from `base`: `rows`, `memory`, `left_out` with reasons, and `not_measured`, the
    micro-benchmarks that were left out. Exact stages of all models come first, then one precision after
    another.

    On a CPU the sizes must be tiny, and times mean nothing. seconds: nothing is started after this time.
    """
    start_s, counts, cpu = time.monotonic(), list(views), device.type != "cuda"
    skipped: dict[str, str] = {}
    not_measured: list[str] = []

    def note(line: str) -> None:
        not_measured.append(line)
        say(line)

    products, read = (
        shapes(models.values(), counts, DTYPES, prompt),
        attentions(models.values(), counts, prompt),
    )
    limits = (64, 1) if cpu else ()
    row_dtypes = [] if cpu or _not_multiplied("w8a8", device) else ["int8"]
    measured_device = measure(
        base, device, products, min(60.0, seconds / 3), note, *limits, read=read, rows=row_dtypes
    )
    measured_device = replace(
        measured_device, name="measured", title="this machine", gemm=() if cpu else measured_device.gemm
    )
    rows: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    for precision in precisions:
        reason = _not_multiplied(precision, device)
        if reason:
            skipped[precision] = reason
            continue
        for kind, sizes in models.items():
            if precision != EXACT and not isinstance(sizes, PiConfig):
                continue  # their stages have no other precision
            label = f"{kind} {precision}"
            if time.monotonic() - start_s + (0.0 if cpu else LEAST_S[kind]) > seconds:
                skipped[label] = f"it would begin after {seconds:g} s"
                continue
            needed = make_plan(sizes, base, Work(max(counts), prompt), slots=2).memory.total
            if not cpu and needed > torch.cuda.mem_get_info(device)[0]:
                skipped[label] = f"it needs {needed / 1e9:.1f} GB by the plan, more than is free"
                continue
            try:
                for case in measured(sizes, counts, [precision], prompt, device, runs):
                    for reference in (measured_device, base):
                        rows += compared(sizes, reference, case, prompt)
                    if case.get("allocated_bytes"):
                        memory.append(memory_row(sizes, base, case))
                    if time.monotonic() - start_s > seconds:
                        skipped[label] = f"{seconds:g} s were over after {case['views']} views"
                        break
            except torch.OutOfMemoryError:
                skipped[label] = "the GPU's memory was too small"
    document = {"rows": rows, "memory": memory, "left_out": skipped, "not_measured": not_measured}
    return measured_device, {"runs": runs, **document, **counted(rows)}


def _not_multiplied(precision: str, device: torch.device) -> str:
    try:
        check(precision, True, device, torch.bfloat16)
    except ValueError as error:
        return str(error)
    return ""


def measured(
    sizes: Sizes, views: list[int], precisions: list[str], prompt: int, device: torch.device, runs: int
) -> Iterator[Case]:
    """Yield a model's cases: views, precision, ms by stage, and peak allocated_bytes if known."""
    assert not isinstance(sizes, (PlainSizes, PiFastConfig)), "it has no such stages"
    cases = (
        _openvla(sizes, prompt, device, runs)
        if isinstance(sizes, OpenVLAConfig)
        else _flow(sizes, views, precisions, min(prompt, sizes.max_prompt), device, runs)
    )
    try:
        yield from cases
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _flow(
    sizes: PiConfig | SmolVLAConfig,
    views: list[int],
    precisions: list[str],
    prompt: int,
    device: torch.device,
    runs: int,
) -> Iterator[Case]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    base_bytes = start_of_peak(device) if device.type == "cuda" else 0
    model = (
        random_smolvla(sizes, device).set_precision(dtype)
        if isinstance(sizes, SmolVLAConfig)
        else random_model(sizes, device, dtype=dtype)
    )
    for precision in precisions:
        for count in views:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            ours = Ours(model, random_inputs(sizes, count, prompt, device), precision=precision)
            ms = {name: _ms(run, device, runs) for name, run in ours.parts().items()}
            ms["whole"] = ms.pop("total")
            yield {
                "views": count,
                "precision": precision,
                "ms": ms,
                "allocated_bytes": torch.cuda.max_memory_allocated(device) - base_bytes
                if device.type == "cuda"
                else None,
                "held_before_bytes": base_bytes,
                "slots": 2,
            }
            del ours
            gc.collect()


@torch.inference_mode()
def _openvla(sizes: OpenVLAConfig, prompt: int, device: torch.device, runs: int) -> Iterator[Case]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_network(lambda: OpenVLA(sizes).to(dtype), device)
    side, g = sizes.dino.image_size, sizes.prefix
    pixels = torch.randn(1, 6, side, side, device=device).to(dtype)
    towers = Body(lambda: model.encode(pixels), device)
    new = sizes.dino.tokens + min(prompt, sizes.max_prompt) + ACTION_TOKENS - 1
    pool = KVPool(g, 2, new + ACTION_TOKENS, device, dtype)
    forward = PackedForward(model.language_model.model, g, new + ACTION_TOKENS)

    def rows(count: int) -> torch.Tensor:
        return torch.randn(1, count, g.width, device=device).to(dtype)

    def with_head(segment: Segment, read: int) -> float:
        (hidden,) = forward([segment])
        assert forward.last is not None
        head = Body(lambda: model.language_model.lm_head(hidden[:, -read:]), device)
        return _ms(forward.last.run, device, runs) + _ms(head.run, device, runs)

    ms = {"encode": _ms(towers.run, device, runs)}
    ms["prefill"] = with_head(Segment(rows(new), causal=True, out=pool.span(0, 0, new)), ACTION_TOKENS)
    ms["decode"] = with_head(Segment(rows(1), (pool.span(0, 0, new),), out=pool.span(0, new, new + 1)), 1)
    yield {"views": 1, "precision": "exact", "ms": ms}


def _ms(run: Callable[[], object], device: torch.device, runs: int) -> float:
    for _ in range(3):
        run()
    if device.type != "cuda":
        start_s = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start_s)
    return float(np.median(times_ms(run, runs)))


def start_of_peak(device: torch.device) -> int:
    """Free unused GPU memory, restart the peak, and return the bytes still held: those of models that are not
    collected yet, or of cuBLAS, do not count."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
