"""The engine's whole path, from frames in host memory to actions in host memory, beside its stages alone.

    python bench/engine_path.py [--kinds pi0 pi05 smolvla] [--views 1 2 3] [--runs N] [--size H W]
        [--pageable] [--plain N]

A frame is `Engine.observe` and `Engine.act`: two requests through the scheduler, timed by the host until the
actions are in host memory. The stages are the same engine's graphs of encode, prefill and denoise, replayed
and waited for after each frame. The difference is everything outside the graphs: tokenizing and upload,
scheduling, noise, reading and scaling actions. The upload of the same frames is also timed by itself, because
it depends on the machine. Frames are in page-locked memory, like the cameras' rings. Over further frames it
counts the bytes requested from the device allocator, and the tensors and bytes that Python page-locks. With
--plain N, each case is followed by N frames of an engine in plain torch (`plain`), with the seconds that
building the stages took (`made_s`).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from run import Bench, Given, Row, main
from shared.models import KINDS as PI_KINDS
from shared.models import config_of, page_locked
from shared.policies import random_policy
from shared.subjects import random_observation
from shared.timing import Pinned, allocated_by, summary, synchronize
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.smolvla.config import SMOLVLA, SmolVLAConfig
from vla_accel_ros.tools.bench.tiny import TINY_SMOLVLA
from vla_accel_ros.types import Observation

KINDS: dict[str, PiConfig | SmolVLAConfig] = {**PI_KINDS, "smolvla": SMOLVLA}
STEPS = 10
OBSERVATIONS = 3
ABOUT = {"steps": STEPS, "seeds": "weights 0, observations 0 to 2, noise 0"}
WARM_UP, COUNTED = 10, 8
"""Frames before the timed ones, and frames after them whose memory is counted."""


def options(add: Callable[..., Any]) -> None:
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2, 3), help="numbers of cameras")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--runs", type=int, default=500, help="frames of each case (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--pageable", action="store_true", help="frames in ordinary memory")
    add("--plain", type=int, default=0, metavar="N", help="frames in plain torch, too (default: none)")


def measure(given: Given) -> Iterator[Row]:
    """A row for each model and number of views."""
    for kind in given.kinds:
        tiny = TINY_SMOLVLA if given.small else SMOLVLA
        yield from cases(tiny if kind == "smolvla" else config_of(kind, given.small), given)
        gc.collect()


def cases(config: PiConfig | SmolVLAConfig, given: Given) -> Iterator[Row]:
    """Measure one case for each number of views, with one engine."""
    policy = random_policy(config, given.device, given.dtype)
    engine = Engine(policy, fast=True, steps=STEPS)
    made_s = prepared(engine, given.views, given.prompt)
    slow = Engine(policy, steps=STEPS) if given.plain else None
    for views in given.views:
        observations = [
            random_observation(policy, views, given.prompt, tuple(given.size), seed)
            for seed in range(OBSERVATIONS)
        ]
        locked = [] if given.pageable else [page_locked(observation) for observation in observations]
        frames = [observation for observation, _ in locked] or observations
        try:
            state = "pageable" if given.pageable else locked[0][1].lock.state
            stages, upload = stages_of(engine, frames[0], given.prompt), upload_of(engine, frames[0])
            row = timed(engine, frames, stages, upload, given.runs)
            if slow is not None:
                row |= {"plain": plain(slow, frames, given.plain), "made_s": made_s}
            yield {"kind": config.kind, "views": views, "frames": state, **row}
        finally:
            for _, registration in locked:
                registration.end()


def prepared(engine: Engine, views: Sequence[int], prompt: int) -> float:
    """Build the stages; returns the seconds it took."""
    began_s = time.perf_counter()
    engine.prepare(views, [prompt])
    synchronize(engine.policy.device)
    return round(time.perf_counter() - began_s, 2)


def plain(engine: Engine, observations: Sequence[Observation], runs: int) -> dict[str, float]:
    """Measure frames of an engine without stages."""
    device, times_s = engine.policy.device, list[float]()
    for number in range(WARM_UP + runs):
        synchronize(device)
        begin_s = time.perf_counter()
        with engine.observe(observations[number % len(observations)]) as prefix:
            engine.act(prefix)
        times_s.append(time.perf_counter() - begin_s)
    return _figures(1e3 * np.array(times_s[WARM_UP:]))


def timed(
    engine: Engine,
    observations: Sequence[Observation],
    stages: Callable[[], object],
    upload: Callable[[], object],
    runs: int,
) -> Row:
    """Repeat a frame, a replay of the stages and an upload; each is waited for."""
    device = engine.policy.device
    names = "engine", "observe", "act", "stages", "upload"
    times_s: dict[str, list[float]] = {name: [] for name in names}
    number = 0

    def frame() -> tuple[float, float, float]:
        nonlocal number
        begin_s = time.perf_counter()
        with engine.observe(observations[number % len(observations)]) as prefix:
            observed_s = time.perf_counter()
            engine.act(prefix)
        number += 1
        return begin_s, observed_s, time.perf_counter()

    for _ in range(WARM_UP + runs):
        synchronize(device)
        begin_s, observed_s, acted_s = frame()
        synchronize(device)
        replay_s = time.perf_counter()
        stages()
        synchronize(device)
        replayed_s = time.perf_counter()
        upload()
        synchronize(device)
        uploaded_s = time.perf_counter()
        times_s["engine"].append(acted_s - begin_s)
        times_s["observe"].append(observed_s - begin_s)
        times_s["act"].append(acted_s - observed_s)
        times_s["stages"].append(replayed_s - replay_s)
        times_s["upload"].append(uploaded_s - replayed_s)
    row: Row = {name: _figures(1e3 * np.array(seconds[WARM_UP:])) for name, seconds in times_s.items()}
    row["difference_ms"] = round(row["engine"]["p50_ms"] - row["stages"]["p50_ms"], 4)
    return row | memory(frame, device)


def memory(frame: Callable[[], object], device: torch.device) -> dict[str, float | None]:
    """Return the memory allocated for a frame: device bytes (None on a CPU), and page-locked tensors."""

    def frames() -> None:
        for _ in range(COUNTED):
            frame()

    allocated = allocated_by(frames) / COUNTED if device.type == "cuda" else None
    with Pinned() as pinned:
        frames()
    return {
        "allocated_bytes": allocated,
        "pinned_tensors": pinned.tensors / COUNTED,
        "pinned_bytes": pinned.bytes / COUNTED,
    }


def stages_of(engine: Engine, observation: Observation, prompt: int) -> Callable[[], None]:
    """The graphs that compute a frame, in order, with their present inputs."""
    stages, steps, views = engine.runner.stages, engine.config.steps, len(observation.images)
    assert isinstance(stages, Stages)
    of_flow = stages.encode(views), stages.prefill(views, prompt), stages.denoise(1, steps)
    chain = [(stage, stage.variant) for stage in of_flow]

    def replay() -> None:
        for stage, variant in chain:
            stage.variant = variant
            stage.run()

    return replay


def upload_of(engine: Engine, observation: Observation) -> Callable[[], None]:
    """The copy of a frame's pixels to where its first stage reads them."""
    stages, images = engine.runner.stages, list(observation.images.values())
    assert isinstance(stages, Stages)
    buffers = stages.encode(len(images)).upload

    @torch.inference_mode()
    def upload() -> None:
        buffers.take(images)
        buffers.read()

    return upload


def _figures(times_ms: np.ndarray) -> dict[str, float]:
    quantiles = summary(times_ms)
    return {**quantiles, "p99_over_p50": round(quantiles["p99_ms"] / quantiles["p50_ms"], 4)}


BENCH = Bench(
    "engine_path", measure, options, about=ABOUT, gpu=True,
    smoke="--small --runs 2 --plain 2 --views 1 2 --size 30 40",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
