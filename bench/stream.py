"""A stream at several rates over one engine: the rates that it reaches, for every setting of lanes.

    python bench/stream.py [--kinds pi0 pi05] [--ways fresh stream] [--settings one text two three ...]
        [--seconds S] [--joints HZ] [--staggered N] [--views V] [--size H W] [--pageable]

A setting is a value of lanes, optionally followed by other options of the engine: "text,prefill_groups=6",
"two,partition=32:100". The others are compared with the first setting.

Full-size random weights. A camera gives 30 frames a second, another process gives joints 500 times a second
(--joints), further chunks are wanted as often, and the model continues its own prompt at 72 tokens a second.
The ways:
`stream`: chunks are staggered, each in a seat; `fresh`: the first chunk of a frame is whole and before them
(docs/lab/staggered.md). The interpreter is set as in a node. For each case, timed by the host after a
warm-up: frames a second and those dropped, finished chunks a second and the time from one to the next, how
evenly joints came and how old they were when a chunk began, the time from an image in host memory to its
first finished chunk, tokens a second, and what was given up for overload.

Then everything is wanted at once without a deadline. The work of a second is the sum over frames, chunks and
forwards of text of the time that each takes alone in the first setting of the same way, which should be
`one`; so without parallel work it is at most about 1. A forward makes a token of every answer, but counts as
one of a single answer. `against_first` compares it with that setting.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from run import Bench, Given, Row, main
from shared.models import KINDS, config_of, page_locked, read_options, setting_of
from shared.policies import random_policy
from shared.streamed import Camera, Streamed, costs_alone
from shared.subjects import random_observation
from shared.timing import summary
from vla_accel_ros.engine.config import LANES, STAGGERING, EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Observation

STEPS = 10
VISION_HZ, LANGUAGE_HZ = 30.0, 4.5
ENDLESS_S = 1e3
OBSERVATIONS = 3
ABOUT = {"steps": STEPS, "vision_hz": VISION_HZ, "seeds": "weights 0, observations 0 to 2, noise 0"}


def options(add: Callable[..., Any]) -> None:
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--ways", nargs="+", choices=STAGGERING, default=STAGGERING, help="how chunks of a frame begin")
    add("--settings", nargs="+", default=LANES, type=setting_of(options_of), metavar="LANES,OPTION=VALUE")
    add("--seconds", type=float, default=60.0, help="of each case (default: %(default)s)")
    add("--warm-up", type=float, default=3.0, help="seconds before (default: %(default)s)")
    add("--saturated", type=float, default=5.0, help="seconds at the limit (default: %(default)s)")
    add("--joints", type=float, default=500.0, help="how often they change, in Hz (default: %(default)s)")
    add("--staggered", type=int, default=STEPS, help="chunks at once (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--pageable", action="store_true", help="frames in ordinary memory")


def cases(given: Given) -> Iterator[Row]:
    """A row for each model, way and setting."""
    sys.setswitchinterval(SWITCH_S)
    for kind in given.kinds:
        policy = random_policy(config_of(kind, given.small), given.device, given.dtype)
        for way in given.ways:
            yield from cases_of(policy, kind, way, given)


def cases_of(policy: Policy, kind: str, way: str, given: Given) -> Iterator[Row]:
    """A row for each setting of lanes."""
    observations = [
        random_observation(policy, given.views, given.prompt, tuple(given.size), seed)
        for seed in range(OBSERVATIONS)
    ]
    locked = [] if given.pageable else [page_locked(observation) for observation in observations]
    frames = [observation for observation, _ in locked] or observations
    first: Row | None = None
    try:
        for setting in given.settings:
            row = measure(policy, frames, way, setting, given)
            first = first or row
            work, first_work = (_work(case["saturated"], first["alone_ms"]) for case in (row, first))
            row["saturated"] |= {"work": round(work, 4), "against_first": round(work / first_work, 4)}
            state = "pageable" if given.pageable else locked[0][1].lock.state
            yield {"kind": kind, "way": way, "setting": setting, "frames": state, **row}
            gc.unfreeze()
            gc.collect()
    finally:
        for _, registration in locked:
            registration.end()


def measure(
    policy: Policy, frames: Sequence[Observation], way: str, setting: str, arguments: Given
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
        figures_of_run = figures(streamed, arguments.seconds)
    endless = {"vision": 1e3, "action": 1e3, "language": 1e3}
    with Streamed(engine, Camera(frames, 1e3), 1e3, endless, deadline_s=ENDLESS_S) as streamed:
        time.sleep(min(arguments.warm_up, 1.0))
        streamed.begin()
        time.sleep(arguments.saturated)
        done, seconds = streamed.end()
    reason = engine.runner.partitioned.reason
    alone_ms = {name: round(1e3 * cost, 4) for name, cost in costs.items()}
    rates_hz = {name: round(number / seconds, 2) for name, number in done.items()}
    return {**figures_of_run, "partition": reason, "alone_ms": alone_ms, "saturated": {"rates_hz": rates_hz}}


def _work(saturated: dict[str, Any], alone_ms: dict[str, float]) -> float:
    """Seconds of work in a second: everything done, weighted by its time alone."""
    return sum(1e-3 * alone * saturated["rates_hz"][name] for name, alone in alone_ms.items())


def options_of(setting: str) -> dict[str, Any]:
    """The engine options of a setting. Raises ValueError for an invalid one."""
    lanes, *words = setting.split(",")
    settings = {"lanes": lanes, **read_options(words, setting)}
    EngineConfig(fast=True, staggered=STEPS, **settings)
    return settings


def figures(streamed: Streamed, seconds: float) -> dict[str, Any]:
    """Of a window of a stream that runs."""
    streamed.begin()
    time.sleep(seconds)
    done, took_s = streamed.end()
    arrival_s, joints_s = np.array(streamed.came_s), np.array(streamed.joints_s)
    given_up = streamed.stream.degradation
    chunks = done["chunks"] + done["first_chunks"]
    return {
        "vision": {"hz": round(done["frames"] / took_s, 3), "dropped": streamed.dropped},
        "joints": {
            "interval": summary(1e3 * np.diff(joints_s)),
            "age": summary(1e3 * np.array(streamed.ages_s)),
        },
        "chunks": {"hz": round(chunks / took_s, 2), "interval": summary(1e3 * np.diff(arrival_s))},
        "first_chunk": summary(1e3 * np.array(streamed.first_s)),
        "tokens_hz": round(done["tokens"] / took_s, 2),
        "misses": {stats.name: stats.misses for stats in streamed.stream.stats()},
        "given_up": {
            "level": given_up.level,
            "text_paused_s": round(given_up.paused_s, 3),
            "chunks": sum(given_up.chunks.values()),
            "frames": sum(given_up.frames.values()),
        },
    }


BENCH = Bench(
    "stream", cases, options, about=ABOUT, gpu=True, starts_nodes=True,
    smoke="--small --kinds pi0 --seconds 0.5 --warm-up 0.2 --saturated 0.3 --staggered 4 --size 30 40 "
    "--settings one",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
