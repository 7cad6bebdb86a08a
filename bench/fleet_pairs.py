"""Pairs of a benchmark and a family (Kairos, Table 1) in simulated time, with measured profiles.

    python bench/fleet_pairs.py [--seeds 6] [--minutes 1] [--quick]

Tasks are simulated (fleet/simulator/workloads.py), durations of batches are measured: they are read from
bench/results, and each row names its file and GPU. A family whose batches were not measured is served one
request at a time; a family that was not measured has no row, and `absent` names its pair. Arrivals come for
--minutes at LOAD times what one replica computes with static horizons. Dynamic horizons are an oracle: they
are drawn, at no cost in success.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import fleet_sim

from run import Bench, Given, Row, main
from shared.intervals import change, interval
from tables.forms import at, one, result
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.rules.rule import SERVE, ReplicaProfile
from vla_accel_ros.fleet.simulator.runs import Load, open_loop
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, STATIC, WORKLOADS, Workload

LOAD = 1.6
FIFO, LAS, KAIROS, SRPT = fleet_sim.FIFO, fleet_sim.LAS, fleet_sim.KAIROS, fleet_sim.SRPT
CASES = (
    (FIFO, STATIC),
    (LAS, STATIC),
    (KAIROS, STATIC),
    (SRPT, STATIC),
    (FIFO, DYNAMIC),
    (KAIROS, DYNAMIC),
    (SRPT, DYNAMIC),
)
METRICS = ("avg", "p25", "p95", "standing")


class Pair(NamedTuple):
    """family: of the profile. workload: of which tasks, horizons and chunk are taken."""

    family: str
    workload: Workload


LIBERO = WORKLOADS["libero_pi05"]
SHORT = replace(LIBERO, horizon=(8, 16), chunk=16, libero=False)
PAIRS = {
    "LIBERO / pi0.5": Pair("pi05", LIBERO),
    "LIBERO / SmolVLA": Pair("smolvla", LIBERO),
    "LIBERO / X-VLA": Pair("xvla", replace(LIBERO, horizon=(8, 30), chunk=30, libero=False)),
    "Meta-World / SmolVLA": Pair("smolvla", WORKLOADS["meta_smol"]),
    "Isaac Lab / GR00T N1.5": Pair(
        "groot_n1_5", replace(LIBERO, kinds=32, horizon=(8, 16), chunk=16, libero=False)
    ),
    "bimanual SO-101 / pi0.5": Pair("pi05", WORKLOADS["bimanual_pi05"]),
    "RoboTwin / Fast-WAM": Pair("fastwam", WORKLOADS["robotwin_wam"]),
    "SIMPLER / mimic-video": Pair(
        "mimic_video", replace(LIBERO, kinds=4, horizon=(8, 16), chunk=16, libero=False)
    ),
}
SOURCES: dict[str, tuple[str, str, Row, str]] = {
    "pi05": ("fleet_admission_batches", "admission", {}, "curve_ms"),
    "smolvla": ("engine_path", "cases", {"kind": "smolvla", "views": 2}, "engine.p50_ms"),
    **{
        kind: ("families", "cases", {"kind": kind, "views": views}, "frame.p50_ms")
        for kind, views in (("xvla", 2), ("groot_n1_5", 2), ("fastwam", 2), ("mimic_video", 5))
    },
}
"""By family: file of bench/results, its list, the row, and where it has milliseconds; of two cameras, or five
frames of one."""


@cache
def measured(family: str) -> tuple[ReplicaProfile, Row] | None:
    """The replica, and where its durations are from; None if the family was not measured."""
    name, rows, fields, path = SOURCES[family]
    document = result(name)
    if not any(row.items() >= fields.items() for row in document[rows]):
        return None
    ms = at(one(document[rows], **fields), path)
    durations_ms = {int(size): value for size, value in ms.items()} if isinstance(ms, dict) else {1: ms}
    profile = Profile({(SERVE, size): value / 1e3 for size, value in durations_ms.items()})
    source = {"file": f"{name}.json", "gpu": document["machine"]["gpu"], "ms": durations_ms}
    return ReplicaProfile(max(durations_ms), profile), source


def options(add: Callable[..., Any]) -> None:
    add("--seeds", type=int, default=6, help="runs of each case, 2 or more (default: %(default)s)")
    add("--minutes", type=float, default=1.0, help="of arrivals (default: %(default)s)")
    add("--quick", action="store_true", help="30 tasks each, to try the command")


def measure(given: Given) -> Iterator[Row]:
    """Each pair: its profile, and all cases against fifo and las with static horizons."""
    given.document["absent"] = [name for name, pair in PAIRS.items() if measured(pair.family) is None]
    for name, pair in PAIRS.items():
        if (known := measured(pair.family)) is None:
            continue
        replica, source = known
        tasks = 30 if given.quick else arrivals(pair.workload, replica, 60.0 * given.minutes)
        samples = {
            case: fleet_sim.collected(
                simulated(pair.workload, replica, *case, seed, tasks) for seed in range(given.seeds)
            )
            for case in CASES
        }
        for (rule, horizon), values in samples.items():
            yield {
                "pair": name, "family": pair.family, "rule": rule, "horizon": horizon, "tasks": tasks,
                "profile": source, **{metric: interval(values[metric]) for metric in METRICS},
                "chunks_per_s": interval(values["chunks_per_s"]),
                **{
                    f"against_{base}": {
                        metric: change(values[metric], samples[base, STATIC][metric]) for metric in METRICS
                    }
                    for base in (FIFO, LAS)
                },
            }  # fmt: skip


def arrivals(workload: Workload, replica: ReplicaProfile, seconds: float) -> int:
    """Tasks that arrive in a time."""
    load = Load.of(workload, 0, STATIC, 300)
    return math.ceil(300 * seconds / load.arrivals_s(LOAD, replica)[-1])


def simulated(
    workload: Workload, replica: ReplicaProfile, rule: str, horizon: str, seed: int, tasks: int
) -> dict[str, float]:
    """The figures of a run."""
    load = Load.of(workload, seed, horizon, tasks)
    return fleet_sim.summarized(open_loop(load, find(FLEET_RULES, rule), LOAD, {"edge": replica}))


BENCH = Bench(
    "fleet_pairs",
    measure,
    options,
    about={"simulated": True, "profiles": "measured", "load_of_capacity": LOAD},
    key=("pair", "rule", "horizon"),
    smoke="--quick --seeds 2",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
