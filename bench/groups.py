"""A frame in groups of layers on one lane: the time of each group, and how long a step waits for one.

    python bench/groups.py [--kinds pi0 pi05] [--counts 1 2 4 6 8] [--views V] [--prompt T] [--runs N]

Full-size random weights. For each number of groups (`prefill_groups`; 1 = the whole frame): the graphs of
each group, replayed one after another and timed by GPU events. Then the engine's own path, timed by the host:
ten staggered chunks are always in progress, a frame of page-locked images is observed again and again, and
each micro-batch on the one lane, stepped without its thread, is timed. `step_ms` is from the end of a step of
the chunks to the end of the next with nothing in between; `apart_ms` is the same with a group, or the whole
frame, in between: the difference is how long an action waits. `same_bits`: the prefix equals that of a whole
frame. Prints a table and writes bench/results/groups.json. --small runs tiny models in float32 on a CPU to
try the command; its figures mean nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from engine_path import page_locked
from torch import Tensor

from full_size.command import measuring, new_document, place
from full_size.figures import summary, write
from full_size.gpu import alone, gpu_id
from grids.measure import synchronize
from grids.sizes import KINDS, config_of
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.request import ACT, OBSERVE, Request
from vla_accel_ros.engine.stages.prefill.layered import grouped
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.bench.policies import random_observation, random_policy
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.types import Observation

STEPS = 10
WARM_UP = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "groups")
    add = parser.add_argument
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--counts", nargs="+", type=int, default=(1, 2, 4, 6, 8), help="numbers of groups")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--runs", type=int, default=50, help="frames of each case (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device."""
    device, dtype, out = place(arguments)
    document = new_document(
        dtype,
        "weights 0, observation 0, noise 0",
        steps=STEPS,
        views=arguments.views,
        prompt=arguments.prompt,
        runs=arguments.runs,
        size=list(arguments.size),
    )
    print(HEAD, flush=True)
    with alone(gpu_id(device)):
        for kind in arguments.kinds:
            policy = random_policy(config_of(kind, arguments.small), device, dtype)
            made = random_observation(policy, arguments.views, arguments.prompt, tuple(arguments.size))
            frame, registration = page_locked(made)
            whole: list[Tensor] = []
            try:
                for count in arguments.counts:
                    found = measure(policy, frame, count, arguments, whole)
                    document["cases"].append({"kind": kind, "groups": count, **found})
                    print(line(document["cases"][-1]), flush=True)
                    if out is not None:
                        write(out / "groups.json", document)  # an interrupted run keeps its results
                    gc.collect()
            finally:
                registration.end()
    return 0


def measure(
    policy: Policy, frame: Observation, count: int, arguments: argparse.Namespace, whole: list[Tensor]
) -> dict[str, Any]:
    """The figures for one number of groups. whole: keys and values of the frame in the first case."""
    engine = Engine(
        policy, fast=True, steps=STEPS, staggered=STEPS, slots=2 * STEPS + 6, prefill_groups=count
    )
    stages = engine.runner.stages
    assert isinstance(stages, Stages)
    stages.build([arguments.views], [arguments.prompt], ())
    engine.runner.actor.prepare()
    with engine.observe(frame) as prefix:
        view = engine.runner.pool.view(prefix.slot, prefix.n_tokens)
        kv = [part.clone() for part in view]
    whole += [] if whole else kv
    groups = replays(stages, arguments.views, arguments.prompt, count)
    gpu = [_quantiles(times) for times in replayed(groups, policy.device, arguments.runs)]
    steps, apart, host = path(engine, frame, arguments.runs)
    return {
        "same_bits": all(torch.equal(ours, other) for ours, other in zip(kv, whole, strict=True)),
        "gpu_ms": gpu,
        "longest_gpu_ms": max(one["p50_ms"] for one in gpu),
        "sum_gpu_ms": round(sum(one["p50_ms"] for one in gpu), 4),
        "host_ms": [_quantiles(times) for times in host],
        "step_ms": _quantiles(steps),
        "apart_ms": _quantiles(apart),
    }


def replays(stages: Stages, views: int, prompt: int, count: int) -> list[Callable[[], None]]:
    """The graphs of each group, with the present contents of their buffers."""
    encode, prefill = stages.encode(views), stages.prefill(views, prompt)

    def at_once() -> None:
        encode.run()
        prefill.run()

    def of(group: list[Any]) -> Callable[[], None]:
        def replay() -> None:
            for stage, layers in group:
                with stage.only(layers):
                    stage.run()

        return replay

    return [at_once] if count == 1 else [of(group) for group in grouped((encode, prefill), count)]


@torch.inference_mode()
def replayed(groups: Sequence[Callable[[], None]], device: torch.device, runs: int) -> list[list[float]]:
    """Seconds of each group, frame after frame; GPU time if there is a GPU."""
    taken: list[list[float]] = [[] for _ in groups]
    for _ in range(WARM_UP + runs):
        for times, group in zip(taken, groups, strict=True):
            times.append(_timed(group, device))
    return [times[WARM_UP:] for times in taken]


def _timed(work: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def path(engine: Engine, frame: Observation, runs: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Seconds from one step's end to the next, with nothing in between and with a group or the whole frame in
    between; and the time of each group's micro-batch in the lane."""
    scheduler, count = engine.scheduler, engine.config.prefill_groups
    steps, apart = list[float](), list[float]()
    host: list[list[float]] = [[] for _ in range(count)]
    engine.observe(frame).release()
    for number in range(WARM_UP + runs):
        for _ in range(1 if number else 2 * STEPS):
            _step(engine)
        synchronize(engine.policy.device)
        seen = scheduler.submit(Request(OBSERVE, observation=frame))
        ended_s, between = time.perf_counter(), False
        for _ in range(3 * count + 2):
            began_s, done = time.perf_counter(), seen.done
            is_group, now_s = seen in _step(engine), time.perf_counter()
            times = host[done] if is_group else apart if between else steps
            if number >= WARM_UP:
                times.append(now_s - (began_s if is_group else ended_s))
            ended_s, between = (ended_s, True) if is_group else (now_s, False)
        scheduler.wait(seen)
        assert isinstance(seen.result, Prefix)
        seen.result.release()
    scheduler.cancel(*scheduler.requests)
    return steps, apart, host


def _step(engine: Engine) -> tuple[Request, ...]:
    """A step in which another chunk of the newest frame is always wanted, because something new is
    committed."""
    if not any(request.want == ACT and not request.begun for request in engine.scheduler.requests):
        act = Request(ACT, stream=True, waits=True, commits=lambda stamp_ns: 1)
        engine.scheduler.submit(act)
    return engine.scheduler.step()


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    return summary(1e3 * np.array(seconds))


NAMES = ("longest", "sum ms", "step", "p99", "apart", "p99")
HEAD = f"{'':18}{'bits':>6}{''.join(f'{name:>9}' for name in NAMES)}   ms of each group"


def line(case: dict[str, Any]) -> str:
    """A line of the table: medians and p99 in milliseconds."""
    both = [case[name] for name in ("step_ms", "apart_ms")]
    times = "".join(f"{row['p50_ms']:9.3f}{row['p99_ms']:9.3f}" for row in both)
    each = " ".join(f"{one['p50_ms']:.3f}" for one in case["gpu_ms"])
    name = f"{case['kind']}, {case['groups']} group{'s' * (case['groups'] > 1)}"
    same = "same" if case["same_bits"] else "OTHER"
    return f"{name:18}{same:>6}{case['longest_gpu_ms']:9.3f}{case['sum_gpu_ms']:9.3f}{times}   {each}"


if __name__ == "__main__":
    sys.exit(main())
