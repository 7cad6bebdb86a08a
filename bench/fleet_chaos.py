"""A fleet in which processes are killed at random, on a network that disturbs its messages.

    python bench/fleet_chaos.py [--kills 200] [--seed 0] [--robots 3] [--json FILE]

Real nodes run as processes over real DDS: a scheduler with a tiny policy, and robots with `fleet_inference`,
`trajectory`, and drivers and controllers that check every command. The robots' clocks are 2 s ahead of and
behind the scheduler's. Messages between robots and scheduler are delayed, doubled, reordered and lost.
SIGKILL hits the scheduler with its replica, a robot's inference or trajectory node, or a robot's inference
whose topics vanish with it; each is started again. The status is 1 if a robot got another robot's chunk,
broke a limit or moved too long; if a robot that has everything it needs again neither moved nor said why
within 3 s, or did not move within 15 s; or if memory, threads, descriptors, seats, slots, files in /dev/shm
or the graph grew beyond their limits (chaos/leaks.py).
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos import leaks, run
from chaos.fleet import INSTRUCTION, OFFSETS_S, Fleet
from chaos.network import USUAL, Weather
from chaos.processes import NICER
from run import Bench, Given, main
from vla_accel_ros.tools.running.graph import own_graph

START_S = 180.0


def of_fleet(
    folder: Path, robots: int, kills: int, seed: int, pause_s: float, most_s: float, weather: Weather
) -> dict[str, Any]:
    """A whole run, in the graph that this process has entered; no kill begins after most_s. Raises
    TimeoutError if the fleet does not begin to move."""
    with Fleet(folder, {**os.environ}, robots, seed, weather) as fleet:
        if not fleet.until(lambda: fleet.moving(dict.fromkeys(fleet.robots, 0)), START_S):
            raise TimeoutError(f"the fleet does not move within {START_S:g} s; its logs are in {folder}")
        began_s = time.monotonic()
        killed = run.play(fleet, run.plan(kills, seed, robots), seed, pause_s, most_s)
        took_s = time.monotonic() - began_s
        judged = {name: robot.judge() for name, robot in fleet.robots.items()}
        run.look_back(fleet, killed)
        leaks_left = leaks.rest(fleet)
        lives = leaks.lives(fleet)
        fleet.instruct(INSTRUCTION)
        again_ns = dict.fromkeys(fleet.robots, time.monotonic_ns())
        leaks_left["goes_on_again"] = fleet.until(lambda: fleet.moving(again_ns), START_S)
        ended = {name: process.ended for name, process in fleet.processes.items() if process.ended}
        lost = {name: process.lost for name, process in fleet.processes.items() if process.lost}
        statuses = fleet.end()
    return {
        "kills": len(killed),
        "seed": seed,
        "robots": robots,
        "seconds": round(took_s),
        "kills_per_minute": round(60 * len(killed) / took_s, 1),
        "clock_offsets_s": OFFSETS_S[:robots],
        "network": {**asdict(weather), **fleet.network.counts},
        "by_kind": run.report(killed),
        "robots_judged": judged,
        "left": leaks_left,
        "lives": lives,
        "ended_by_themselves": ended,
        "lost_shared_memory": lost,
        "statuses": statuses,
        "all": [asdict(kill) for kill in killed],
    }


def faults(found: dict[str, Any]) -> list[str]:
    """Return the violated conditions, one sentence each."""
    judged = found["robots_judged"].values()
    sentences = [
        fault for robot in judged for field in ("broken", "wrong", "rejected") for fault in robot[field]
    ]
    for kind, row in found["by_kind"].items():
        if row["stuck"]:
            sentences.append(f"{kind}: {row['stuck']} robots did not go on")
        if row["silent"]:
            within = f"within {run.HEARD_S:g} s"
            sentences.append(f"{kind}: {row['silent']} robots neither moved nor said why they stand {within}")
        if (slowest_s := row["goes_on_s"]["max"] or 0.0) > run.MOVES_S:
            sentences.append(f"{kind}: a robot went on after {slowest_s} s, the bound is {run.MOVES_S:g} s")
    if not found["left"]["goes_on_again"]:
        sentences.append("the fleet does not go on when it is told to do something again")
    sentences += leaks.faults(found["left"], found["lives"], found["kills"])
    sentences += [
        f"{name} ended by itself: {statuses}" for name, statuses in found["ended_by_themselves"].items()
    ]
    return sentences


def measure(given: Given) -> Iterator[None]:
    """One run; status 1 if a condition was violated."""
    with suppress(OSError):
        os.nice(-NICER)  # drivers and controllers have a higher priority than the nodes, as on a robot
    with own_graph(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run_folder = given.logs or Path(folder)
        given.document |= of_fleet(
            run_folder, given.robots, given.kills, given.seed, given.pause_s, 60 * given.minutes, USUAL
        )
    given.document["load"] = round(os.getloadavg()[0], 2)
    sentences = faults(given.document)
    print("\n".join(sentences) or "all as it must be")
    given.document["status"] = int(bool(sentences))
    yield None


def options(add: Callable[..., Any]) -> None:
    """How many, and how often."""
    add("--kills", type=int, default=200)
    add("--seed", type=int, default=0)
    add("--robots", type=int, default=3)
    add("--pause-s", type=float, default=1.0, help="mean time between two kills")
    add("--minutes", type=float, default=math.inf, help="no kill begins after so long")
    add("--logs", type=Path, help="a folder that is kept")


BENCH = Bench(
    "fleet_chaos", measure, options, rows="all", smoke="--kills 2 --robots 2", starts_nodes=True,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
