"""What keeping vision weights in host memory costs and saves, for two image encoders with random weights.

    python bench/offload.py [--towers pi0 cogagent] [--small --out DIR]

pi0: SigLIP as the engine runs it, captured, at 2 views, from cameras' pixels to tokens. cogagent: an encoder
of the size of EVA2-CLIP-E at 1120 px (63 layers of width 1792, 6400 patches; Nova's table II), with layers in
plain torch as one captured graph. For each, with all weights on the GPU: the time T and the bandwidth B of
copies. Then, by number of streamed layers and of slots: median latency, against T and against a prediction
from T, B and a layer's bytes; the GPU memory saved, by the allocator; and whether the results have the same
bits. It names the largest share that costs at most 1 %. It takes at most two minutes on an H200, and ends
with status 1 if bits differ.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from run import Bench, Given, Row, main
from shared.timing import by_events
from vla_accel_ros.engine.stages.memory.offload import LayerRing
from vla_accel_ros.engine.stages.memory.offload_report import predicted_s
from vla_accel_ros.engine.stages.prefill.encode import Encode, tower_of
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.config import PI0, VisionConfig
from vla_accel_ros.models.layers.vision import Encoder
from vla_accel_ros.models.processing.conventions import OPENPI
from vla_accel_ros.tools.bench.subjects import random_model

PI0_VIEWS, PROJECTIONS = 2, ("q_proj", "k_proj", "v_proj", "out_proj")
CHEAP = 0.01
SMALL_VISION = {"width": 32, "mlp": 64, "heads": 4, "depth": 7, "image_size": 56}


class Case(NamedTuple):
    """Number of streamed layers and of slots; None = the engine's number of slots."""

    streamed: int
    slots: int | None = None


class Tower(NamedTuple):
    """An encoder: its layers, the tokens of a run, and functions for a ring of a share and slots and for a
    stage over a ring."""

    layers: int
    rows: int
    ring: Callable[[float, int | None], LayerRing]
    stage: Callable[[LayerRing], tuple[Stage, torch.Tensor]]


CASES = {
    "pi0": (Case(27, 2), Case(27, 1), Case(27, 3), *map(Case, (20, 14, 9, 6, 4, 3, 2))),
    "cogagent": (Case(63, 2), Case(63, 3), Case(62), Case(57), Case(53, 2), Case(53, 3), Case(32)),
}
"""The first has the bandwidth measured."""
SMALL_CASES = (Case(7, 2), Case(7, 1), Case(4), Case(2))


def options(add: Callable[..., Any]) -> None:
    add("--towers", nargs="+", choices=tuple(CASES), default=tuple(CASES))


def measure(given: Given) -> Iterator[Row]:
    """A row for each encoder. Raises RuntimeError if bits differ."""
    different = set[str]()
    for name in given.towers:
        tower = {"pi0": pi0, "cogagent": cogagent}[name](given.device, given.small)
        cases = SMALL_CASES if given.small else CASES[name]
        with torch.inference_mode():
            row = measured(name, tower, cases, given.device)
        del tower
        different |= {name for case in row["cases"] if not case["same_bits"]}
        yield row
    if different:
        raise RuntimeError(f"results with streamed weights have other bits: {', '.join(sorted(different))}.")


def measured(name: str, tower: Tower, cases: Iterable[Case], device: torch.device) -> dict[str, Any]:
    """Of one encoder, all resident and then case by case; prints each."""
    # One stream for all: cuBLAS keeps a workspace for each stream that is recorded on, which is not weights.
    recording = torch.cuda.Stream(device) if device.type == "cuda" else None
    ring = tower.ring(0.0, None)
    stage, tokens = tower.stage(ring)
    stage.capture(recording)
    resident_ms = latency_ms(stage.run, device)
    expected, total = tokens.clone(), ring.total_bytes
    del ring, stage, tokens
    resident_bytes = allocated(device)
    print(f"{name}: {tower.layers} layers, {tower.rows} tokens, {total / 1e9:.2f} GB, {resident_ms:.2f} ms")
    rows: list[dict[str, Any]] = []
    bandwidth = 0.0
    for case in cases:
        share = case.streamed / tower.layers
        ring = tower.ring(share, case.slots)
        bandwidth = bandwidth or ring.streamed_bytes / (1e-3 * latency_ms(ring.fill, device))
        stage, tokens = tower.stage(ring)
        stage.capture(recording)
        ms = latency_ms(stage.run, device)
        same, slots, streamed_bytes = bool((tokens == expected).all()), ring.slots, ring.streamed_bytes
        del stage, tokens
        freed = resident_bytes - allocated(device)
        layer_s, copy_s = 1e-3 * resident_ms / tower.layers, total / tower.layers / bandwidth
        predicted_ms = 1e3 * predicted_s(tower.layers, share, slots, layer_s, copy_s)
        rows.append(
            {
                "streamed": case.streamed,
                "share": round(share, 3),
                "slots": slots,
                "streamed_mb": round(streamed_bytes / 1e6, 1),
                "freed_mb": round(freed / 1e6, 1),
                "p50_ms": round(ms, 3),
                "slower": round(ms / resident_ms - 1, 4),
                "predicted_ms": round(predicted_ms, 3),
                "same_bits": same,
            }
        )
        print("  " + "  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        del ring
    cheap = [row for row in rows if row["slower"] <= CHEAP]
    largest = max(cheap, key=lambda row: (row["streamed"], row["freed_mb"]), default=None)
    needed = total / (1e-3 * resident_ms)
    figures = {
        "tower": name,
        "layers": tower.layers,
        "tokens": tower.rows,
        "weights_mb": round(total / 1e6, 1),
        "resident_ms": round(resident_ms, 3),
        "bandwidth_gb_s": round(bandwidth / 1e9, 2),
        "needed_gb_s": round(needed / 1e9, 2),
        "share_that_bandwidth_hides": round(min(1.0, bandwidth / needed), 4),
        "largest_share_at_1_percent": 0.0 if largest is None else largest["share"],
        "freed_mb_at_1_percent": max((row["freed_mb"] for row in cheap), default=0.0),
        "cases": rows,
    }
    print("  " + "  ".join(f"{key} {figures[key]}" for key in list(figures)[4:-1]), flush=True)
    return figures


def latency_ms(call: Callable[[], object], device: torch.device) -> float:
    """Median of calls, for half a second or seven calls; on a CPU, where it is only tried, of seven."""
    by_events(call, device)
    runs = max(7, min(100, int(0.5 / by_events(call, device)))) if device.type == "cuda" else 7
    return 1e3 * float(np.median([by_events(call, device) for _ in range(runs)]))


def allocated(device: torch.device) -> int:
    """Bytes of the device that tensors have; 0 on a CPU."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def pi0(device: torch.device, small: bool) -> Tower:
    """SigLIP in the engine's own stage, with the smallest possible language model."""
    vision = replace(PI0.vision, **(SMALL_VISION if small else {}))
    prefix, expert = (replace(stack, depth=1, mlp=64) for stack in (PI0.prefix, PI0.expert))
    model = random_model(replace(PI0, vision=vision, prefix=prefix, expert=expert, vocab=64), device)
    model.set_precision(torch.bfloat16)
    size = vision.image_size
    frames = np.random.default_rng(0).integers(0, 256, (PI0_VIEWS, size, size, 3), np.uint8)

    def stage(ring: LayerRing) -> tuple[Stage, torch.Tensor]:
        encode = Encode(model, ops_for(device), PI0_VIEWS, OPENPI.pixels, ring)
        encode.upload.take(list(frames))
        return encode, encode.tokens

    def ring(share: float, slots: int | None) -> LayerRing:
        return tower_of(model, share, slots)

    return Tower(vision.depth, PI0_VIEWS * vision.tokens, ring, stage)


def cogagent(device: torch.device, small: bool) -> Tower:
    """The layers of an EVA2-CLIP-E, made of the package's own vision layers."""
    config = VisionConfig(width=1792, depth=63, mlp=15360, heads=16, image_size=1120, patch=14)
    if small:
        config = VisionConfig(**SMALL_VISION, patch=14)
    with torch.device("meta"):
        encoder = Encoder(config)
    encoder = encoder.to(torch.bfloat16).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            spread = 0.1 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            parameter.normal_(0.0, spread, generator=generator)
    names = (*(f"self_attn.{name}" for name in PROJECTIONS), "mlp.fc1", "mlp.fc2")
    pixels = torch.randn(1, config.tokens, config.width, generator=generator, device=device).bfloat16()

    class Layers(Stage):
        """Embedded patches [1, T, W] to features."""

        def __init__(self, ring: LayerRing) -> None:
            super().__init__(device)
            self.ring, self.out = ring, torch.zeros_like(pixels)

        def body(self) -> None:
            x = pixels
            for layer, matrices in zip(encoder.layers, self.ring, strict=True):
                weights = zip((f"{name}.weight" for name in names), matrices, strict=True)
                x = functional_call(layer, dict(weights), x)
            self.out.copy_(x)

    def stage(ring: LayerRing) -> tuple[Stage, torch.Tensor]:
        stage_of = Layers(ring)
        return stage_of, stage_of.out

    def ring(share: float, slots: int | None) -> LayerRing:
        layers = [
            [[module] for name in names if isinstance(module := layer.get_submodule(name), nn.Linear)]
            for layer in encoder.layers
        ]
        return LayerRing(layers, share, device, slots)

    return Tower(config.depth, config.tokens, ring, stage)


BENCH = Bench("offload", measure, options, rows="towers", gpu=True, smoke="--small")

if __name__ == "__main__":
    sys.exit(main(BENCH))
