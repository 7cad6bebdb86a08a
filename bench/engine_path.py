"""The engine's whole path, from frames in host memory to actions in host memory, beside its stages alone.

    python bench/engine_path.py [--kinds pi0 pi05 smolvla] [--views 1 2 3] [--runs N] [--size H W]
        [--pageable] [--plain N]

A frame is `Engine.observe` and `Engine.act`: two requests through the scheduler, timed by the host until the
actions are in host memory. The stages are the same engine's graphs of encode, prefill and denoise (for
SmolVLA resize, prefix and step), replayed and waited for after each frame. The difference is everything
outside the graphs: tokenizing and upload, scheduling, noise, reading and scaling actions. The upload of the
same frames is also timed by itself, because it depends on the machine. Frames are in page-locked memory, like
the cameras' rings. Over further frames it counts the bytes requested from the device allocator, and the
tensors and bytes that Python page-locks. With --plain N, each case is followed by N frames of an engine in
plain torch (`plain`), with the seconds that building the stages took (`made_s`). Prints a table and writes
bench/results/engine_path.json. --small runs tiny models in float32 on a CPU to try the command; its figures
mean nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from full_size.command import measuring, new_document, place
from full_size.figures import Pinned, allocated_by, summary, write
from full_size.gpu import alone, gpu_id
from grids.measure import synchronize
from grids.sizes import KINDS as PI_KINDS
from grids.sizes import config_of
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.denoise.denoise import Form
from vla_accel_ros.engine.stages.memory.host_memory import Registration
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.smolvla.config import SMOLVLA, SmolVLAConfig
from vla_accel_ros.tools.bench.policies import random_observation, random_policy
from vla_accel_ros.tools.bench.tiny import TINY_SMOLVLA
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.types import Observation

KINDS: dict[str, PiConfig | SmolVLAConfig] = {**PI_KINDS, "smolvla": SMOLVLA}
STEPS = 10
OBSERVATIONS = 3
WARM_UP, COUNTED = 10, 8
"""Frames before the timed ones, and frames after them whose memory is counted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "engine_path")
    add = parser.add_argument
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2, 3), help="numbers of cameras")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--runs", type=int, default=500, help="frames of each case (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--pageable", action="store_true", help="frames in ordinary memory")
    add("--plain", type=int, default=0, metavar="N", help="frames in plain torch, too (default: none)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device."""
    device, dtype, out = place(arguments)
    document = new_document(
        dtype,
        f"weights 0, observations 0 to {OBSERVATIONS - 1}, noise 0",
        steps=STEPS,
        prompt=arguments.prompt,
        runs=arguments.runs,
        size=list(arguments.size),
    )
    print(HEAD, flush=True)
    with alone(gpu_id(device)):
        for kind in arguments.kinds:
            for case in cases(_config(kind, arguments.small), arguments, device, dtype):
                document["cases"].append(case)
                print(line(case), flush=True)
                if out is not None:
                    write(out / "engine_path.json", document)  # an interrupted run keeps its results
            gc.collect()
    return 0


def cases(
    config: PiConfig | SmolVLAConfig, arguments: argparse.Namespace, device: torch.device, dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    """Measure one case for each number of views, with one engine."""
    policy = random_policy(config, device, dtype)
    engine = Engine(policy, fast=True, steps=STEPS)
    made = prepared(engine, arguments.views, arguments.prompt)
    slow = Engine(policy, steps=STEPS) if arguments.plain else None
    for views in arguments.views:
        seen = [
            random_observation(policy, views, arguments.prompt, tuple(arguments.size), seed)
            for seed in range(OBSERVATIONS)
        ]
        held = [] if arguments.pageable else [page_locked(observation) for observation in seen]
        given = seen if arguments.pageable else [observation for observation, _ in held]
        try:
            state = "pageable" if arguments.pageable else held[0][1].lock.state
            stages, upload = stages_of(engine, given[0], arguments.prompt), upload_of(engine, given[0])
            found = measure(engine, given, stages, upload, arguments.runs)
            if slow is not None:
                found |= {"plain": plain(slow, given, arguments.plain), "made_s": made}
            yield {"kind": config.kind, "views": views, "frames": state, **found}
        finally:
            for _, registration in held:
                registration.end()


def prepared(engine: Engine, views: Sequence[int], prompt: int) -> float:
    """Build the stages; returns the seconds it took."""
    began_s = time.perf_counter()
    engine.prepare(views, [prompt])
    synchronize(engine.policy.device)
    return round(time.perf_counter() - began_s, 2)


def plain(engine: Engine, observations: Sequence[Observation], runs: int) -> dict[str, float]:
    """Measure frames of an engine without stages."""
    device, taken = engine.policy.device, list[float]()
    for number in range(WARM_UP + runs):
        synchronize(device)
        begin_s = time.perf_counter()
        with engine.observe(observations[number % len(observations)]) as prefix:
            engine.act(prefix)
        taken.append(time.perf_counter() - begin_s)
    return _figures(1e3 * np.array(taken[WARM_UP:]))


def measure(
    engine: Engine,
    observations: Sequence[Observation],
    stages: Callable[[], object],
    upload: Callable[[], object],
    runs: int,
) -> dict[str, Any]:
    """Repeat a frame, a replay of the stages and an upload; each is waited for."""
    device = engine.policy.device
    names = "engine", "observe", "act", "stages", "upload"
    taken: dict[str, list[float]] = {name: [] for name in names}
    number = 0

    def frame() -> tuple[float, float, float]:
        nonlocal number
        begin_s = time.perf_counter()
        with engine.observe(observations[number % len(observations)]) as prefix:
            seen_s = time.perf_counter()
            engine.act(prefix)
        number += 1
        return begin_s, seen_s, time.perf_counter()

    for _ in range(WARM_UP + runs):
        synchronize(device)
        begin_s, seen_s, acted_s = frame()
        synchronize(device)
        replay_s = time.perf_counter()
        stages()
        synchronize(device)
        replayed_s = time.perf_counter()
        upload()
        synchronize(device)
        uploaded_s = time.perf_counter()
        taken["engine"].append(acted_s - begin_s)
        taken["observe"].append(seen_s - begin_s)
        taken["act"].append(acted_s - seen_s)
        taken["stages"].append(replayed_s - replay_s)
        taken["upload"].append(uploaded_s - replayed_s)
    found: dict[str, Any] = {
        name: _figures(1e3 * np.array(seconds[WARM_UP:])) for name, seconds in taken.items()
    }
    found["difference_ms"] = round(found["engine"]["p50_ms"] - found["stages"]["p50_ms"], 4)
    return found | memory(frame, device)


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
    chain: list[tuple[Stage, Hashable]]
    if isinstance(stages, PlainStages):
        resize = stages.resize(list(observation.images.values()))
        stages.prefix.variant = seen = views, prompt
        step = stages.prefix.length, Form.FREE, stages.policy.joints
        chain = [(resize, None), (stages.prefix, seen), *[(stages.step, step)] * steps]
    else:
        assert stages is not None
        of_pi = stages.encode(views), stages.prefill(views, prompt), stages.denoise(1, steps)
        chain = [(stage, stage.variant) for stage in of_pi]

    def replay() -> None:
        for stage, variant in chain:
            stage.variant = variant
            stage.run()

    return replay


def upload_of(engine: Engine, observation: Observation) -> Callable[[], None]:
    """The copy of a frame's pixels to where its first stage reads them."""
    stages, images = engine.runner.stages, list(observation.images.values())
    if isinstance(stages, PlainStages):
        buffers = stages.resize(images).upload
    else:
        assert stages is not None
        buffers = stages.encode(len(images)).upload

    @torch.inference_mode()
    def upload() -> None:
        buffers.take(images)
        buffers.read()

    return upload


def page_locked(observation: Observation) -> tuple[Observation, Registration]:
    """The same frame in memory that is registered with CUDA, if there is a GPU, until `end`."""
    images = observation.images
    size = sum(image.nbytes for image in images.values())
    memory_ = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    placed, start = {}, 0
    for name, image in images.items():
        placed[name] = memory_[start : start + image.nbytes].reshape(image.shape)
        placed[name][:] = image
        start += image.nbytes
    return replace(observation, images=placed), Registration(memory_.ctypes.data, size)


HEAD = (
    f"{'':17}{'engine':>9}{'p99':>9}{'p99/p50':>9}{'stages':>9}{'p99':>9}{'p99/p50':>9}{'diff ms':>10}"
    f"{'observe':>9}{'act':>9}{'upload':>9}{'device B':>10}{'pinned':>8}{'pinned B':>10}"
)


def line(case: dict[str, Any]) -> str:
    """Return a line of the table: medians and p99 in milliseconds, bytes and page-locked tensors of a
    frame."""
    both = [case[name] for name in ("engine", "stages")]
    times = "".join(f"{row['p50_ms']:9.3f}{row['p99_ms']:9.3f}{row['p99_over_p50']:9.3f}" for row in both)
    parts = "".join(f"{case[name]['p50_ms']:9.3f}" for name in ("observe", "act", "upload"))
    device = "-" if case["allocated_bytes"] is None else f"{case['allocated_bytes']:.0f}"
    pinned = f"{case['pinned_tensors']:8.1f}{case['pinned_bytes']:10.0f}"
    name = f"{case['kind']}, {case['views']} view{'s' * (case['views'] > 1)}"
    return f"{name:17}{times}{case['difference_ms']:10.3f}{parts}{device:>10}{pinned}"


def _figures(times_ms: np.ndarray) -> dict[str, float]:
    found = summary(times_ms)
    return {**found, "p99_over_p50": round(found["p99_ms"] / found["p50_ms"], 4)}


def _config(kind: str, tiny: bool) -> PiConfig | SmolVLAConfig:
    if kind == "smolvla":
        return TINY_SMOLVLA if tiny else SMOLVLA
    return config_of(kind, tiny)


if __name__ == "__main__":
    sys.exit(main())
