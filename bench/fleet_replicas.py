"""One replica and two through Ray: chunks a second, and how long robots wait.

    python bench/fleet_replicas.py [--setting OPTION=VALUE,...] [--seconds S]

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
to the actor and back.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Any

import torch
from fleet import KIND, SEED, SERVED

from fleets.actors import Making
from fleets.loads import ask_again, play
from fleets.serving import as_observation, make_robots, options_of, serving
from run import Bench, Given, Row, main
from shared.models import config_of, setting_of
from shared.policies import random_policy
from shared.timing import alone, gpu_id
from vla_accel_ros.fleet.replicas.ray import RayReplica
from vla_accel_ros.fleet.replicas.ray_cluster import Cluster, Deadlines, Where
from vla_accel_ros.fleet.replicas.replica import Replica
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded

MORE = 1.25
"""Robots per request that the replicas take, when they are saturated."""
TIER, NAMES = "edge", ("first", "second")
LOCAL, BOTH = "local", "ray, both"
DEADLINES = Deadlines(start=240.0)


def measure(given: Given) -> Iterator[Row | None]:
    """An engine here, each of two actors, and both. Raises ValueError without Ray."""
    gpus = 0 if given.small else torch.cuda.device_count()
    size = given.size[0], given.size[1]
    sys.setswitchinterval(SWITCH_S)
    with ExitStack() as stack:
        for index in range(1, gpus):
            stack.enter_context(alone(gpu_id(torch.device("cuda", index))))
        policy = random_policy(config_of(KIND, given.small), given.device, given.dtype)
        count = max(len(NAMES) * given.robots, 96)
        given.fleet = robots = make_robots(policy, count, given.views, size, SEED)
        given.document |= {
            "kind": KIND, "steps": 10, "gpus": gpus, "function_only": gpus < len(NAMES),
            "buffer_s": given.buffer, "seeds": f"weights 0, observations {SEED}, noise 0, trace {SEED}",
            "seconds": {
                "saturated": given.seconds, "fleet": given.fleet_seconds, "warm_up": given.warm_up,
            },
            "prompts": list(robots.prompts),
        }  # fmt: skip
        given.document["versions"]["ray"] = metadata.version("ray")
        with serving(policy, given.setting, robots, given.views) as replica:
            replica.measure(as_observation(robots, robots.names[0]))
            yield of_replicas(LOCAL, [replica], given)
        del policy, replica
        gc.collect()
        if gpus:
            torch.cuda.empty_cache()
        making = Making(KIND, given.small, given.setting, count, given.views, size, SEED)
        with in_actors(making, gpus) as replicas:
            keep_loaded()
            given.document["network_ms"] = [
                round(1e3 * each_replica.network_s, 3) for each_replica in replicas
            ]
            for each_replica in replicas:
                yield of_replicas(f"ray, {each_replica.name}", [each_replica], given)
            yield of_replicas(BOTH, replicas, given)
        given.document["speedup"] = speedup(given.document["cases"])
        yield None


def of_replicas(name: str, replicas: Sequence[Replica], given: Given) -> Row:
    """Both loads on these replicas."""
    robots = given.fleet
    count = min(len(robots.names), math.ceil(MORE * sum(replica.limit for replica in replicas)))
    saturated = ask_again(replicas, robots, count, given.seconds, given.warm_up)
    count = given.robots * len(replicas)
    rhythm = given.hz, given.buffer, given.fleet_seconds, SEED
    fleet = play(replicas, robots, count, *rhythm, warm_up=given.warm_up)
    return {"case": name, "saturated": saturated, "fleet": fleet}


@contextmanager
def in_actors(making: Making, gpus: int) -> Iterator[tuple[RayReplica, ...]]:
    """Two replicas in a cluster of this process, each on its own GPU if there are enough. Raises ValueError
    or RuntimeError if one does not start."""
    cluster = Cluster(tiers={TIER: len(NAMES)}, gpus=gpus)
    replicas: tuple[RayReplica, ...] = ()
    try:
        share = 1.0 if gpus >= len(NAMES) else gpus / len(NAMES)
        for name in NAMES:  # none is measured while another is loading
            replica = RayReplica(name, making, Where(TIER, share), DEADLINES)
            replicas += (replica,)
            replica.ready.result()
        yield replicas
    finally:
        gc.unfreeze()
        for replica in replicas:
            replica.close()
        cluster.close()


def speedup(cases: Sequence[dict[str, Any]]) -> float:
    """Rate of both, divided by the mean rate of either alone, saturated. Raises RuntimeError if one of these
    made no chunk."""
    hz = {case["case"]: case["saturated"]["chunks_hz"] for case in cases}
    for name in NAMES:
        if not hz[f"ray, {name}"]:
            raise RuntimeError(f"the {name} replica made no chunk while saturated: give more --seconds")
    return round(hz[BOTH] / statistics.mean(hz[f"ray, {name}"] for name in NAMES), 4)


def options(add: Callable[..., Any]) -> None:
    """Engines, loads and robots."""
    setting = setting_of(options_of)
    add("--setting", type=setting, default=SERVED[-1], metavar="OPTION=VALUE,...", help="of the engines")
    add("--seconds", type=float, default=6.0, help="of each case, saturated (default: %(default)s)")
    add("--fleet-seconds", type=float, default=8.0, help="of each case, fleet (default: %(default)s)")
    add("--warm-up", type=float, default=3.0, help="seconds before what counts (default: %(default)s)")
    add("--robots", type=int, default=40, help="of fleet, for each replica (default: %(default)s)")
    add("--hz", type=float, default=3.0, help="requests of such a robot a second (default: %(default)s)")
    add("--buffer", type=float, default=0.1, help="motion left when it asks, s (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")


SMOKE = (
    "--small --size 30 40 --seconds 1 --fleet-seconds 1 --warm-up 0.5 --robots 2 --hz 1"
    " --setting scheduling=batches,staggered=4,frames_together=2"
)
BENCH = Bench("fleet_replicas", measure, options, gpu=True, smoke=SMOKE, starts_nodes=True)

if __name__ == "__main__":
    sys.exit(main(BENCH))
