"""Many robots on one engine: chunks a second, how long a robot waits, and how many robots fit.

    python bench/fleet.py [--parts throughput peers fleet admission replicas2] [--settings ...] [--budget S]
        [--out DIR]

Full-size pi0.5 with random weights, two 640x480 views, ten steps, bfloat16; robots of two kinds, each with
its own number of joints, statistics and words. It measures the product's path without ROS:
fleet/replicas/local.py, from pixels in host memory to a chunk in host memory; in the parts `fleet` and
`admission` also fleet/serving/scheduler.py.

throughput: the replica always has as many requests as it takes, for each setting of the engine: chunks a
    second and the time of one request.
peers: for comparison: one request at a time by captured stages; batches of 16 in lock-step, exact and with an
    8-bit prefix; plain torch, eager, one at a time; and with --compiled S the same compiled, within S
    seconds.
fleet: robots ask --hz times a second by a trace (random phase, intervals that vary by a tenth), each when
    --buffer seconds of its motion are left, whatever happened to its last request. Time from image to chunk;
    the share of requests answered after the motion had ended, and the share of time that arms stood still.
admission: for each setting of --admit, how many robots fleet/admission/forecast.py expects to fit: from what
    the replica measures at its start (expected), and from robots as they asked in the warm-up of a window
    (seen). And the largest number that keeps p99 within --within and stall within --stall in at least half of
    the windows of --window s, one for each of --admit-seeds. Two windows are too few
    (bench/fleet_windows.py).
replicas2: two processes with an engine each: on two GPUs if there are two, else both on one, only to test the
    function.

Each part begins no new case after --budget seconds. Prints tables and writes bench/results/fleet.json after
each case.
--small runs tiny models in float32 on a CPU to try the command; its figures mean nothing and are written only
to --out.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fleets import peers, processes
from fleets.admitting import measured_fleet
from fleets.loads import play, saturate
from fleets.serving import Robots, make_robots, options_of, serving
from full_size import compiled
from full_size.command import measuring, place
from full_size.figures import write
from full_size.gpu import alone, gpu_id
from grids.sizes import config_of
from vla_accel_ros.interpreter import SWITCH_S
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.bench.policies import random_policy
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

PARTS = ("throughput", "peers", "fleet", "admission", "replicas2")
KIND = "pi05"
FULL = "scheduling=throughput"
SOON = "scheduling=batches,staggered=16,seats_by_load=true"
SETTINGS = (
    f"{FULL},staggered=20,frames_together=4",
    f"{FULL},staggered=20,frames_together=4,precision=fp8",
    f"{FULL},staggered=32,frames_together=4",
    f"{FULL},staggered=16,frames_together=2",
    f"{FULL},staggered=20",
    f"{FULL},staggered=20,lanes=two",
    f"{FULL},staggered=20,lanes=two,frames_together=4",
    f"{FULL},staggered=20,precision=fp8",
    f"{FULL},staggered=32,frames_together=4,precision=fp8",
    f"{FULL},staggered=20,frames_together=4,seats_by_load=true",
    f"{FULL},staggered=8",
    f"{FULL},staggered=10",
    f"{FULL},staggered=16",
    f"{FULL},staggered=24",
    f"{FULL},staggered=32",
    f"{FULL},staggered=8,seats_by_load=true",
    f"{FULL},staggered=16,seats_by_load=true",
    f"{FULL},staggered=32,seats_by_load=true",
    SOON,
    f"{SOON},frames_together=4",
    "staggered=10",
    "staggered=16",
)
SERVED = (
    "staggered=16,seats_by_load=true",
    "staggered=16",
    SETTINGS[0],
    SOON,
    f"{SOON},frames_together=4",
)
ADMITTED = SERVED[0], SERVED[-1]
BATCH = 16
ROBOTS = 40
MOST_ROBOTS = 96
SEED = 0


@dataclass
class Bench:
    """One run. robots: the most that any part needs."""

    arguments: argparse.Namespace
    policy: Policy
    robots: Robots
    document: dict[str, Any]
    out: Path | None

    def add(self, part: str, case: dict[str, Any]) -> None:
        """Print a row, and write all results so far."""
        self.document.setdefault(part, []).append(case)
        print(line(part, case), flush=True)
        if self.out is not None:
            write(self.out / "fleet.json", self.document)  # an interrupted run keeps its results

    def cases(self, part: str, these: Sequence[Callable[[], dict[str, Any]]]) -> None:
        """Yield each case until the budget is used up; a failing case does not stop the others."""
        began_s = time.monotonic()
        for case in these:
            if time.monotonic() - began_s > self.arguments.budget:
                print(f"{part}: {self.arguments.budget:.0f} s are over; the rest is left out", flush=True)
                return
            case_s = time.monotonic()
            try:
                found = case()
            except Exception as error:
                if self.arguments.small:
                    raise
                found = {"setting": "", "failed": f"{type(error).__name__}: {error}"}
            self.add(part, {**found, "took_s": round(time.monotonic() - case_s, 1)})
            gc.collect()
            if self.policy.device.type == "cuda":
                torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "fleet")
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add(
        "--settings",
        nargs="+",
        type=_setting,
        default=SETTINGS,
        metavar="OPTION=VALUE,...",
        help="of throughput",
    )
    add("--serve", nargs="+", type=_setting, default=SERVED, help="settings of fleet; of the rest the first")
    add("--admit", nargs="+", type=_setting, default=ADMITTED, help="settings of admission")
    add("--seconds", type=float, default=3.0, help="of each case of throughput (default: %(default)s)")
    add("--fleet-seconds", type=float, default=20.0, help="of each case of fleet (default: %(default)s)")
    add(
        "--warm-up",
        type=float,
        default=5.0,
        help="seconds of a trace before what counts (default: %(default)s)",
    )
    add("--window", type=float, default=5.0, help="seconds of a window of admission (default: %(default)s)")
    add(
        "--budget",
        type=float,
        default=100.0,
        help="seconds after which a part begins no case (default: %(default)s)",
    )
    add("--robots", type=int, default=ROBOTS, help="of fleet (default: %(default)s)")
    add("--most-robots", type=int, default=MOST_ROBOTS, help="of admission (default: %(default)s)")
    add("--hz", type=float, default=3.0, help="requests of a robot a second (default: %(default)s)")
    add("--buffer", type=float, default=0.1, help="motion left when a robot asks, s (default: %(default)s)")
    add("--within", type=float, default=0.09, help="p99 from image to chunk, s (default: %(default)s)")
    add("--stall", type=float, default=0.001, help="share of the time that arms stand (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--seeds", nargs="+", type=int, default=(0, 1), help="of traces of fleet (default: %(default)s)")
    add(
        "--admit-seeds",
        nargs="+",
        type=int,
        default=tuple(range(5)),
        help="of traces of admission (default: %(default)s)",
    )
    add(
        "--compiled",
        type=float,
        default=0.0,
        metavar="S",
        help="also torch.compile, in so many seconds; 0: not",
    )
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device."""
    device, dtype, out = place(arguments)
    document: dict[str, Any] = {
        "kind": KIND,
        "views": arguments.views,
        "size": list(arguments.size),
        "steps": 10,
        "dtype": str(dtype).removeprefix("torch."),
        "seeds": f"weights 0, observations {SEED}, noise 0, traces {list(arguments.seeds)}, "
        f"of admission {list(arguments.admit_seeds)}",
        "seconds": {
            "throughput": arguments.seconds,
            "fleet": arguments.fleet_seconds,
            "window": arguments.window,
            "warm_up": arguments.warm_up,
        },
        "hz": arguments.hz,
        "buffer_s": arguments.buffer,
        "within_s": arguments.within,
        "stall": arguments.stall,
        "serve": list(arguments.serve),
        **provenance(),
    }
    if "peers" in arguments.parts and arguments.compiled and not arguments.small:
        document["compiled"] = _compiled(arguments)
    sys.setswitchinterval(SWITCH_S)
    with alone(gpu_id(device)):
        policy = random_policy(config_of(KIND, arguments.small), device, dtype)
        count = max(arguments.robots, arguments.most_robots)
        robots = make_robots(policy, count, arguments.views, tuple(arguments.size), SEED)
        document["prompts"] = list(robots.prompts)
        bench = Bench(arguments, policy, robots, document, out)
        for part in arguments.parts:
            print(f"\n{part}\n{HEADS[part]}", flush=True)
            bench.cases(part, list(CASES[part](bench)))
    return 0


def _compiled(arguments: argparse.Namespace) -> dict[str, Any]:
    """torch.compile in its own process, before this one uses the GPU."""
    case = compiled.Case(KIND, arguments.views, 48, 50)
    found = compiled.measure(case, arguments.compiled)
    print(f"compiled: {found}", flush=True)
    return found


def throughput(bench: Bench) -> list[Callable[[], dict[str, Any]]]:
    """Measure a case for each setting."""

    def measured(setting: str) -> dict[str, Any]:
        given = bench.arguments
        with serving(bench.policy, setting, bench.robots, given.views) as replica:
            warm_up = min(1.0, given.seconds)
            found = saturate(replica, bench.robots, given.seconds, warm_up)
            stages = {
                f"{name} of {batch}": round(1e3 * seconds, 3)
                for (name, batch), seconds in replica.engine.scheduler.profile.known().items()
            }
            return {"setting": setting, "at_once": replica.most, **found, "micro_batch_ms": stages}

    return [lambda setting=setting: measured(setting) for setting in bench.arguments.settings]  # type: ignore[misc]


def other_ways(bench: Bench) -> list[Callable[[], dict[str, Any]]]:
    """Measure other ways to serve, for comparison: one request at a time, lock-step, eager."""
    policy, robots, views, seconds = (
        bench.policy,
        bench.robots,
        bench.arguments.views,
        bench.arguments.seconds,
    )
    lossy = [] if bench.arguments.small else ["precision=fp8"]
    return [
        lambda: {
            "setting": "one at a time",
            **peers.one_at_a_time(policy, robots, views, seconds, "staggered=0"),
        },
        *(
            lambda setting=setting: {
                "setting": f"lock-step of {BATCH}, {setting or 'exact'}",
                **peers.in_lock_step(policy, robots, views, seconds, setting, BATCH),
            }
            for setting in ("", *lossy)
        ),
        lambda: {"setting": "eager", **peers.eager(policy, views, max(robots.prompts), seconds)},
    ]


def fleet(bench: Bench) -> list[Callable[[], dict[str, Any]]]:
    """Measure a case for each setting and seed, each on its own replica."""
    given = bench.arguments

    def measured(setting: str, seed: int) -> dict[str, Any]:
        with serving(bench.policy, setting, bench.robots, given.views) as replica:
            found = play(
                [replica], bench.robots, given.robots, given.hz, given.buffer, given.fleet_seconds, seed,
                warm_up=given.warm_up,
            )  # fmt: skip
            return {"setting": setting, "seed": seed, **found}

    return [
        lambda setting=setting, seed=seed: measured(setting, seed)  # type: ignore[misc]
        for seed in given.seeds
        for setting in given.serve
    ]


def admission(bench: Bench) -> list[Callable[[], dict[str, Any]]]:
    """Measure a case for each setting: the expected and the found number of robots."""

    def told(window: dict[str, Any]) -> None:
        print(line("fleet", window), flush=True)

    return [
        lambda setting=setting: measured_fleet(  # type: ignore[misc]
            bench.policy, setting, bench.robots, bench.arguments, told
        )
        for setting in bench.arguments.admit
    ]


def two_replicas(bench: Bench) -> list[Callable[[], dict[str, Any]]]:
    """Measure two processes with an engine each, as one case."""
    given = bench.arguments
    several = not given.small and torch.cuda.device_count() >= 2
    gpus = [str(gpu_id(torch.device("cuda", index))) for index in range(2)] if several else ["", ""]
    size = given.size[0], given.size[1]
    work = processes.Work(KIND, given.small, given.serve[0], 8, given.views, size, given.seconds)

    def measured() -> dict[str, Any]:
        found = processes.measure(work, gpus)
        return {"setting": given.serve[0], "function_only": not several, **found}

    return [measured]


CASES: dict[str, Callable[[Bench], list[Callable[[], dict[str, Any]]]]] = {
    "throughput": throughput,
    "peers": other_ways,
    "fleet": fleet,
    "admission": admission,
    "replicas2": two_replicas,
}
WIDTH = 66
_RATES = f"{'':{WIDTH}}{'chunks/s':>10}{'request p50':>13}{'p99 ms':>9}"
_WAITS = f"{'':{WIDTH}}{'robots':>7}{'asked/s':>9}{'image p50':>11}{'p99 ms':>9}{'late':>9}{'stall':>9}"
HEADS = {
    "throughput": _RATES,
    "peers": _RATES,
    "fleet": _WAITS,
    "admission": _WAITS,
    "replicas2": f"{'':{WIDTH}}{'alone':>9}{'together':>10}{'speed-up':>10}",
}


def line(part: str, case: dict[str, Any]) -> str:
    """Return a line of a part's table."""
    name = f"{case['setting'].replace('scheduling=', ''):{WIDTH}}"
    if "failed" in case:
        return f"{name}failed: {case['failed']}"
    if part in ("throughput", "peers"):
        took = case["request"]
        return f"{name}{case['chunks_hz']:10.1f}{_ms(took, 'p50_ms'):13.2f}{_ms(took, 'p99_ms'):9.2f}"
    if part == "fleet":
        took = case["image_to_chunk"]
        return (
            f"{name}{case['robots']:7d}{case['asked_hz']:9.1f}{_ms(took, 'p50_ms'):11.2f}"
            f"{_ms(took, 'p99_ms'):9.2f}{case['late']:9.5f}{case['stall']:9.5f}"
        )
    if part == "admission":
        errors = (math.nan if case[of] is None else 100 * case[of] for of in ("error", "error_beside"))
        before, beside = (f"({error:+.1f} %)" for error in errors)
        return (
            f"{name}expected {case['expected']} {before}, of those seen {case['expected_beside']} "
            f"{beside}, found {case['most']} robots; {case['capacity_hz']:.1f} chunks/s"
        )
    said = ", function only" if case["function_only"] else ""
    return f"{name}{case['alone_hz']:9.1f}{sum(case['together_hz']):10.1f}{case['speedup']:10.3f}{said}"


def _ms(took: dict[str, float], name: str) -> float:
    return took.get(name, float("nan"))


def _setting(word: str) -> str:
    try:
        options_of(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return word


if __name__ == "__main__":
    sys.exit(main())
