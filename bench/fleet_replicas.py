"""One replica and two through Ray: chunks a second, and how long robots wait.

    python bench/fleet_replicas.py [--setting OPTION=VALUE,...] [--seconds S] [--out DIR]

Full-size pi0.5 with random weights, two 640x480 views, ten steps, bfloat16. It runs the product's path
without ROS: pixels in host memory, fleet/serving/scheduler.py, fleet/replicas/ray.py, an engine in an actor
on its own GPU, and a chunk that comes back. With one GPU both actors share it, only to test the function.

local: an engine in this process, for comparison. ray, first; ray, second: either actor alone. ray, both:
both.
For each case, after a warm-up:
saturated: a fourth more robots than the replicas take requests, each of which asks as soon as it is answered:
    chunks a second, time from image to chunk, and this process's CPU time per chunk (for `local` including
    the engine).
fleet: --robots for each replica, which ask --hz times a second by a trace, as in the part `fleet` of
    bench/fleet.py.

speedup is `ray, both` divided by the mean of either alone. network_ms is the time of an observation's bytes
to the actor and back. Prints a table and writes bench/results/fleet_replicas.json after each case. --small
runs tiny models in float32 on a CPU to try the command; its figures mean nothing and are written only to
--out.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from fleet import KIND, SEED, SERVED

from fleets.actors import Making
from fleets.loads import ask_again, play
from fleets.serving import Robots, as_observation, make_robots, options_of, serving
from full_size.command import measuring, place
from full_size.figures import write
from full_size.gpu import alone, gpu_id
from grids.sizes import config_of
from vla_accel_ros.fleet.replicas.ray import RayReplica
from vla_accel_ros.fleet.replicas.ray_cluster import Cluster
from vla_accel_ros.fleet.replicas.ray_options import Deadlines, Where
from vla_accel_ros.fleet.replicas.replica import Replica
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.tools.bench.policies import random_policy
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

MORE = 1.25
"""Robots per request that the replicas take, when they are saturated."""
TIER, NAMES = "edge", ("first", "second")
LOCAL, BOTH = "local", "ray, both"
DEADLINES = Deadlines(start=240.0)


@dataclass
class Bench:
    """One run. robots: the most that any case needs."""

    arguments: argparse.Namespace
    robots: Robots
    document: dict[str, Any]
    out: Path | None

    def measure(self, name: str, replicas: Sequence[Replica]) -> None:
        """Measure both loads on these replicas; prints, and writes all results so far."""
        given, robots = self.arguments, self.robots
        count = min(len(robots.names), math.ceil(MORE * sum(one.most for one in replicas)))
        saturated = ask_again(replicas, robots, count, given.seconds, given.warm_up)
        count = given.robots * len(replicas)
        asked = given.hz, given.buffer, given.fleet_seconds, SEED
        fleet = play(replicas, robots, count, *asked, warm_up=given.warm_up)
        case = {"case": name, "saturated": saturated, "fleet": fleet}
        self.document["cases"].append(case)
        print(line(case), flush=True)
        self.write()

    def write(self) -> None:
        if self.out is not None:
            write(self.out / "fleet_replicas.json", self.document)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "fleet_replicas")
    add = parser.add_argument
    add("--setting", type=_setting, default=SERVED[-1], metavar="OPTION=VALUE,...", help="of the engines")
    add("--seconds", type=float, default=6.0, help="of each case, saturated (default: %(default)s)")
    add("--fleet-seconds", type=float, default=8.0, help="of each case, fleet (default: %(default)s)")
    add("--warm-up", type=float, default=3.0, help="seconds before what counts (default: %(default)s)")
    add("--robots", type=int, default=40, help="of fleet, for each replica (default: %(default)s)")
    add("--hz", type=float, default=3.0, help="requests of such a robot a second (default: %(default)s)")
    add("--buffer", type=float, default=0.1, help="motion left when it asks, s (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device, ValueError without Ray."""
    device, dtype, out = place(arguments)
    gpus = 0 if arguments.small else torch.cuda.device_count()
    size = arguments.size[0], arguments.size[1]
    sys.setswitchinterval(SWITCH_S)
    with ExitStack() as stack:
        for index in range(gpus):
            stack.enter_context(alone(gpu_id(torch.device("cuda", index))))
        policy = random_policy(config_of(KIND, arguments.small), device, dtype)
        count = max(len(NAMES) * arguments.robots, 96)
        robots = make_robots(policy, count, arguments.views, size, SEED)
        document: dict[str, Any] = {
            "kind": KIND,
            "setting": arguments.setting,
            "views": arguments.views,
            "size": list(size),
            "steps": 10,
            "dtype": str(dtype).removeprefix("torch."),
            "gpus": gpus,
            "function_only": gpus < len(NAMES),
            "hz": arguments.hz,
            "buffer_s": arguments.buffer,
            "seconds": {
                "saturated": arguments.seconds,
                "fleet": arguments.fleet_seconds,
                "warm_up": arguments.warm_up,
            },
            "seeds": f"weights 0, observations {SEED}, noise 0, trace {SEED}",
            "prompts": list(robots.prompts),
            **provenance(),
            "cases": [],
        }
        document["versions"]["ray"] = metadata.version("ray")
        bench = Bench(arguments, robots, document, out)
        print(HEAD, flush=True)
        with serving(policy, arguments.setting, robots, arguments.views) as replica:
            replica.measure(as_observation(robots, robots.names[0]))
            bench.measure(LOCAL, [replica])
        del policy, replica
        gc.collect()
        if gpus:
            torch.cuda.empty_cache()
        making = Making(KIND, arguments.small, arguments.setting, count, arguments.views, size, SEED)
        with in_actors(making, gpus) as replicas:
            keep_loaded()
            document["network_ms"] = [round(1e3 * one.network_s, 3) for one in replicas]
            for one in replicas:
                bench.measure(f"ray, {one.name}", [one])
            bench.measure(BOTH, replicas)
        document["speedup"] = speedup(document["cases"])
        print(f"two replicas make {document['speedup']:.3f} times the chunks of one", flush=True)
        bench.write()
    return 0


@contextmanager
def in_actors(making: Making, gpus: int) -> Iterator[tuple[RayReplica, ...]]:
    """Two replicas in a cluster of this process, each on its own GPU if there are enough. Raises ValueError
    or RuntimeError if one does not start."""
    cluster = Cluster(tiers={TIER: len(NAMES)}, gpus=gpus)
    replicas: tuple[RayReplica, ...] = ()
    try:
        share = 1.0 if gpus >= len(NAMES) else gpus / len(NAMES)
        for name in NAMES:  # none is measured while another is loading
            one = RayReplica(name, making, Where(TIER, share), DEADLINES)
            replicas += (one,)
            one.ready.result()
        yield replicas
    finally:
        gc.unfreeze()
        for one in replicas:
            one.close()
        cluster.close()


def speedup(cases: Sequence[dict[str, Any]]) -> float:
    """Rate of both, divided by the mean rate of either alone, saturated. Raises RuntimeError if one of these
    made no chunk."""
    hz = {case["case"]: case["saturated"]["chunks_hz"] for case in cases}
    for name in NAMES:
        if not hz[f"ray, {name}"]:
            raise RuntimeError(f"the {name} replica made no chunk while saturated: give more --seconds")
    return round(hz[BOTH] / statistics.mean(hz[f"ray, {name}"] for name in NAMES), 4)


HEAD = (
    f"{'':14}{'chunks/s':>10}{'image p50':>11}{'p99 ms':>9}{'cpu ms/chunk':>14}"
    f" |{'robots':>7}{'asked/s':>9}{'image p50':>11}{'p99 ms':>9}{'late':>9}{'stall':>9}"
)


def line(case: dict[str, Any]) -> str:
    """A line of the table."""
    one, two = case["saturated"], case["fleet"]
    waits = [[of["image_to_chunk"].get(name, math.nan) for name in ("p50_ms", "p99_ms")] for of in (one, two)]
    return (
        f"{case['case']:14}{one['chunks_hz']:10.1f}{waits[0][0]:11.2f}{waits[0][1]:9.2f}"
        f"{one['cpu_ms_per_chunk']:14.3f} |{two['robots']:7d}{two['asked_hz']:9.1f}{waits[1][0]:11.2f}"
        f"{waits[1][1]:9.2f}{two['late']:9.5f}{two['stall']:9.5f}"
    )


def _setting(word: str) -> str:
    try:
        options_of(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return word


if __name__ == "__main__":
    sys.exit(main())
