"""A stream at several rates over one engine: the rates that it reaches, for every setting of lanes.

    python bench/stream.py [--kinds pi0 pi05] [--ways fresh stream] [--settings one text two three ...]
        [--seconds S] [--joints HZ] [--staggered N] [--views V] [--size H W] [--pageable]

A setting is a value of lanes, optionally followed by other options of the engine: "text,prefill_groups=6",
"two,partition=32:100". The others are compared with the first setting.

Full-size random weights. A camera gives 30 frames a second, joints change 500 times a second (--joints),
further chunks are wanted as often, and the model continues its own prompt at 72 tokens a second. The ways:
`stream`: chunks are staggered, each in a seat; `fresh`: the first chunk of a frame is whole and before them
(docs/lab/staggered.md). The interpreter is set as in a node. For each case, timed by the host after a
warm-up: frames a second and those dropped, finished chunks a second and the time from one to the next, the
time from an image in host memory to its first finished chunk, tokens a second, and what was given up for
overload.

Then everything is wanted at once without a deadline. The work of a second is the sum over frames, chunks and
forwards of text of the time that each takes alone in the first setting of the same way, which should be
`one`; so without parallel work it is at most about 1. A forward makes a token of every answer, but counts as
one of a single answer. `against_first` compares it with that setting. Prints a table and writes
bench/results/stream.json. --small runs tiny models in float32 on a CPU to try the command; its figures mean
nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from engine_path import page_locked

from full_size.command import measuring, new_document, place
from full_size.figures import summary, write
from full_size.gpu import alone, gpu_id
from full_size.options import read_options
from full_size.streamed import Camera, Streamed, costs_alone
from grids.sizes import KINDS, config_of
from vla_accel_ros.engine.config import LANES, STAGGERING, EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.bench.policies import random_observation, random_policy
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.types import Observation

STEPS = 10
VISION_HZ, LANGUAGE_HZ = 30.0, 4.5
ENDLESS_S = 1e3
OBSERVATIONS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "stream")
    add = parser.add_argument
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--ways", nargs="+", choices=STAGGERING, default=STAGGERING, help="how chunks of a frame begin")
    add("--settings", nargs="+", default=LANES, type=_setting, metavar="LANES,OPTION=VALUE")
    add("--seconds", type=float, default=60.0, help="of each case (default: %(default)s)")
    add("--warm-up", type=float, default=3.0, help="seconds before (default: %(default)s)")
    add("--saturated", type=float, default=5.0, help="seconds at the limit (default: %(default)s)")
    add("--joints", type=float, default=500.0, help="how often they change, in Hz (default: %(default)s)")
    add("--staggered", type=int, default=STEPS, help="chunks at once (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--pageable", action="store_true", help="frames in ordinary memory")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device."""
    device, dtype, out = place(arguments)
    document = new_document(
        dtype,
        f"weights 0, observations 0 to {OBSERVATIONS - 1}, noise 0",
        steps=STEPS,
        staggered=arguments.staggered,
        views=arguments.views,
        prompt=arguments.prompt,
        seconds=arguments.seconds,
        saturated_seconds=arguments.saturated,
        vision_hz=VISION_HZ,
        joints_hz=arguments.joints,
        size=list(arguments.size),
    )
    print(HEAD, flush=True)
    sys.setswitchinterval(SWITCH_S)
    with alone(gpu_id(device)):
        for kind in arguments.kinds:
            policy = random_policy(config_of(kind, arguments.small), device, dtype)
            for way in arguments.ways:
                _cases(document, policy, kind, way, arguments, out)
    return 0


def _cases(
    document: dict[str, Any],
    policy: Policy,
    kind: str,
    way: str,
    arguments: argparse.Namespace,
    out: Path | None,
) -> None:
    """One for each setting of lanes, added to the document."""
    made = [
        random_observation(policy, arguments.views, arguments.prompt, tuple(arguments.size), seed)
        for seed in range(OBSERVATIONS)
    ]
    locked = [] if arguments.pageable else [page_locked(observation) for observation in made]
    frames = [observation for observation, _ in locked] or made
    first: dict[str, Any] | None = None
    try:
        for setting in arguments.settings:
            found = measure(policy, frames, way, setting, arguments)
            first = first or found
            work, first_work = (_work(one["saturated"], first["alone_ms"]) for one in (found, first))
            found["saturated"] |= {"work": round(work, 4), "against_first": round(work / first_work, 4)}
            state = "pageable" if arguments.pageable else locked[0][1].lock.state
            case = {"kind": kind, "way": way, "setting": setting, "frames": state, **found}
            document["cases"].append(case)
            print(line(case), flush=True)
            gc.unfreeze()
            if out is not None:
                write(out / "stream.json", document)  # an interrupted run keeps its results
            gc.collect()
    finally:
        for _, registration in locked:
            registration.end()


def measure(
    policy: Policy, frames: Sequence[Observation], way: str, setting: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """The figures of one engine: streaming at its rates, and at its limit."""
    count = arguments.staggered
    engine = Engine(
        policy,
        fast=True,
        steps=STEPS,
        staggered=count,
        staggering=way,
        slots=count + 6,
        camera_hz=VISION_HZ,
        action_hz=arguments.joints,
        **options_of(setting),
    )
    engine.prepare([arguments.views], [arguments.prompt])
    keep_loaded()
    costs = costs_alone(engine, frames[0], 2 if arguments.small else 40)
    rates = {"vision": VISION_HZ, "action": arguments.joints, "language": LANGUAGE_HZ}
    with Streamed(engine, Camera(frames, VISION_HZ), arguments.joints, rates) as streamed:
        time.sleep(arguments.warm_up)
        found = figures(streamed, arguments.seconds)
    endless = {"vision": 1e3, "action": 1e3, "language": 1e3}
    with Streamed(engine, Camera(frames, 1e3), 1e3, endless, deadline_s=ENDLESS_S) as streamed:
        time.sleep(min(arguments.warm_up, 1.0))
        streamed.begin()
        time.sleep(arguments.saturated)
        done, seconds = streamed.end()
    chosen = engine.runner.partitioned.why
    alone_ms = {name: round(1e3 * cost, 4) for name, cost in costs.items()}
    rates_hz = {name: round(number / seconds, 2) for name, number in done.items()}
    return {**found, "partition": chosen, "alone_ms": alone_ms, "saturated": {"rates_hz": rates_hz}}


def _work(saturated: dict[str, Any], alone_ms: dict[str, float]) -> float:
    """Seconds of work in a second: everything done, weighted by its time alone."""
    return sum(1e-3 * alone * saturated["rates_hz"][name] for name, alone in alone_ms.items())


def options_of(setting: str) -> dict[str, Any]:
    """The engine options of a setting. Raises ValueError for an invalid one."""
    lanes, *others = setting.split(",")
    given = {"lanes": lanes, **read_options(others, setting)}
    EngineConfig(fast=True, staggered=STEPS, **given)
    return given


def _setting(word: str) -> str:
    try:
        options_of(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return word


def figures(streamed: Streamed, seconds: float) -> dict[str, Any]:
    """Of a window of a stream that runs."""
    streamed.begin()
    time.sleep(seconds)
    done, took_s = streamed.end()
    came = np.array(streamed.came_s)
    given_up = streamed.stream.degradation
    chunks = done["chunks"] + done["first_chunks"]
    return {
        "vision": {"hz": round(done["frames"] / took_s, 3), "dropped": streamed.dropped},
        "chunks": {"hz": round(chunks / took_s, 2), "interval": _times(np.diff(came))},
        "first_chunk": _times(np.array(streamed.first_s)),
        "tokens_hz": round(done["tokens"] / took_s, 2),
        "misses": {stats.name: stats.misses for stats in streamed.stream.stats()},
        "given_up": {
            "level": given_up.level,
            "text_paused_s": round(given_up.paused_s, 3),
            "chunks": sum(given_up.chunks.values()),
            "frames": sum(given_up.frames.values()),
        },
    }


def _times(seconds: np.ndarray) -> dict[str, float]:
    """Quantiles in ms; empty where nothing was finished."""
    return summary(1e3 * seconds) if len(seconds) else {}


HEAD = (
    f"{'':44}{'vision/s':>9}{'dropped':>8}{'chunks/s':>10}{'apart p99':>11}{'first p50':>11}{'p99 ms':>9}"
    f"{'tokens/s':>10}{'given up':>10}{'work':>7}{'/first':>7}"
)


def line(case: dict[str, Any]) -> str:
    """Of the table."""
    first, apart, full = case["first_chunk"], case["chunks"]["interval"], case["saturated"]
    none = float("nan")
    return (
        f"{case['kind'] + ', ' + case['way'] + ', ' + case['setting']:44}{case['vision']['hz']:9.2f}"
        f"{case['vision']['dropped']:8d}{case['chunks']['hz']:10.1f}{apart.get('p99_ms', none):11.2f}"
        f"{first.get('p50_ms', none):11.2f}{first.get('p99_ms', none):9.2f}{case['tokens_hz']:10.1f}"
        f"{case['given_up']['level']:>10}{full['work']:7.3f}{full['against_first']:7.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
