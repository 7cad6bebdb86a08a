"""Many robots on one engine: chunks a second, how long a robot waits, and how many robots fit.

    python bench/fleet.py [--measured throughput peers fleet admission] [--settings ...] [--budget S]

Full-size pi0.5 with random weights, two 640x480 views, ten steps, bfloat16; robots of two kinds, each with
its own number of joints, statistics and words. It measures the product's path without ROS:
fleet/replicas/local.py, from pixels in host memory to a chunk in host memory; in the parts `fleet` and
`admission` also fleet/serving/scheduler.py.

throughput: the replica always has as many requests as it takes, for each setting of the engine: chunks a
    second and the time of one request.
peers: for comparison: one request at a time by captured stages; batches of 16 in lock-step, exact and with an
    8-bit prefix; plain torch, eager, one at a time.
fleet: robots ask --hz times a second by a trace (random phase, intervals that vary by a tenth), each when
    --buffer seconds of its motion are left, whatever happened to its last request. Time from image to chunk;
    the share of requests answered after the motion had ended, and the share of time that arms stood still.
admission: for each setting of --admit, how many robots fleet/admission/forecast.py expects to fit: from what
    the replica measures at its start (expected), and from robots as they asked in the warm-up of a window
    (seen). And the largest number that keeps p99 within --within and stall within --stall in at least half of
    the windows of --window s, one for each of --admit-seeds.

Each part begins no new case after --budget seconds.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fleets import peers
from fleets.admitting import measured_fleet
from fleets.loads import play, saturate
from fleets.serving import make_robots, options_of, serving
from run import Bench, Given, Row, main, shown
from shared.models import config_of, setting_of
from shared.policies import random_policy
from vla_accel_ros.interpreter import SWITCH_S

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
    *(f"{FULL},staggered={count}" for count in (8, 10, 16, 24, 32)),
    *(f"{FULL},staggered={count},seats_by_load=true" for count in (8, 16, 32)),
    SOON,
    f"{SOON},frames_together=4",
    "staggered=10",
    "staggered=16",
)
SERVED = ("staggered=16,seats_by_load=true", "staggered=16", SETTINGS[0], SOON, f"{SOON},frames_together=4")
ADMITTED = SERVED[0], SERVED[-1]
BATCH = 16
SEED = 0
Case = Callable[[], Row]


def measure(given: Given) -> Iterator[None]:
    """A case at a time; a failing one does not stop the others."""
    sys.setswitchinterval(SWITCH_S)
    policy = random_policy(config_of(KIND, given.small), given.device, given.dtype)
    given.policy, count = policy, max(given.robots, given.most_robots)
    given.fleet = make_robots(policy, count, given.views, tuple(given.size), SEED)
    given.document |= {
        "kind": KIND, "steps": 10, "prompts": list(given.fleet.prompts),
        "seeds": f"weights 0, observations {SEED}, noise 0, traces {list(given.seeds)}, "
        f"of admission {list(given.admit_seeds)}",
        "seconds": {
            "throughput": given.seconds, "fleet": given.fleet_seconds, "window": given.window,
            "warm_up": given.warm_up,
        },
        "buffer_s": given.buffer, "within_s": given.within,
    }  # fmt: skip
    for part in given.measured:
        rows, began_s = given.document.setdefault(part, []), time.monotonic()
        for case in PARTS[part](given):
            if time.monotonic() - began_s > given.budget:
                print(f"{part}: {given.budget:.0f} s are over; the rest is left out", flush=True)
                break
            case_s = time.monotonic()
            try:
                row = case()
            except Exception as error:
                if given.small:
                    raise
                row = {"setting": "", "failed": f"{type(error).__name__}: {error}"}
            rows.append({**row, "took_s": round(time.monotonic() - case_s, 1)})
            print(f"{part}: {shown(rows[-1])}", flush=True)
            yield
            gc.collect()
            if given.device.type == "cuda":
                torch.cuda.empty_cache()


def throughput(given: Given) -> Iterator[Case]:
    """Each setting."""

    def measured(setting: str) -> Row:
        with serving(given.policy, setting, given.fleet, given.views) as replica:
            warm_up = min(1.0, given.seconds)
            saturated = saturate(replica, given.fleet, given.seconds, warm_up)
            stages = {
                f"{name} of {batch}": round(1e3 * seconds, 3)
                for (name, batch), seconds in replica.engine.scheduler.profile.known().items()
            }
            return {"setting": setting, "at_once": replica.limit, **saturated, "micro_batch_ms": stages}

    for setting in given.settings:
        yield lambda setting=setting: measured(setting)  # type: ignore[misc]


def other_ways(given: Given) -> Iterator[Case]:
    """Other ways to serve, for comparison: one request at a time, lock-step, eager."""
    policy, robots, views, seconds = given.policy, given.fleet, given.views, given.seconds
    yield lambda: {
        "setting": "one at a time",
        **peers.one_at_a_time(policy, robots, views, seconds, "staggered=0"),
    }
    for setting in ("",) if given.small else ("", "precision=fp8"):
        yield lambda setting=setting: {  # type: ignore[misc]
            "setting": f"lock-step of {BATCH}, {setting or 'exact'}",
            **peers.in_lock_step(policy, robots, views, seconds, setting, BATCH),
        }
    yield lambda: {"setting": "eager", **peers.eager(policy, views, max(robots.prompts), seconds)}


def robots_that_ask(given: Given) -> Iterator[Case]:
    """Each setting and seed, each on its own replica."""

    def measured(setting: str, seed: int) -> Row:
        with serving(given.policy, setting, given.fleet, given.views) as replica:
            played = play(
                [replica], given.fleet, given.robots, given.hz, given.buffer, given.fleet_seconds, seed,
                warm_up=given.warm_up,
            )  # fmt: skip
            return {"setting": setting, "seed": seed, **played}

    for seed in given.seeds:
        for setting in given.serve:
            yield lambda setting=setting, seed=seed: measured(setting, seed)  # type: ignore[misc]


def admission(given: Given) -> Iterator[Case]:
    """Each setting: the expected and the found number of robots."""

    def told(window: Row) -> None:
        print(f"  window: {shown(window)}", flush=True)

    for setting in given.admit:
        yield lambda setting=setting: measured_fleet(  # type: ignore[misc]
            given.policy, setting, given.fleet, given, told
        )


PARTS: dict[str, Callable[[Given], Iterator[Case]]] = {
    "throughput": throughput,
    "peers": other_ways,
    "fleet": robots_that_ask,
    "admission": admission,
}


def options(add: Callable[..., Any]) -> None:
    """What is measured, for how long, for which robots."""
    setting = setting_of(options_of)
    add("--measured", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    add("--settings", nargs="+", type=setting, default=SETTINGS, metavar="OPTION=VALUE,...")
    add("--serve", nargs="+", type=setting, default=SERVED, help="settings of fleet")
    add("--admit", nargs="+", type=setting, default=ADMITTED, help="settings of admission")
    add("--seconds", type=float, default=3.0, help="of each case of throughput (default: %(default)s)")
    add("--fleet-seconds", type=float, default=20.0, help="of each case of fleet (default: %(default)s)")
    add("--warm-up", type=float, default=5.0, help="s of a trace before what counts (default: %(default)s)")
    add("--window", type=float, default=5.0, help="seconds of a window of admission (default: %(default)s)")
    add("--budget", type=float, default=100.0, help="s after which a part begins no case (%(default)s)")
    add("--robots", type=int, default=40, help="of fleet (default: %(default)s)")
    add("--most-robots", type=int, default=96, help="of admission (default: %(default)s)")
    add("--hz", type=float, default=3.0, help="requests of a robot a second (default: %(default)s)")
    add("--buffer", type=float, default=0.1, help="motion left when a robot asks, s (default: %(default)s)")
    add("--within", type=float, default=0.09, help="p99 from image to chunk, s (default: %(default)s)")
    add("--stall", type=float, default=0.001, help="share of the time that arms stand (default: %(default)s)")
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--size", nargs=2, type=int, default=(480, 640), metavar=("H", "W"), help="of the cameras' images")
    add("--seeds", nargs="+", type=int, default=(0, 1), help="of traces of fleet (default: %(default)s)")
    add("--admit-seeds", nargs="+", type=int, default=tuple(range(5)), help="of traces of admission")


SMOKE = (
    "--small --settings scheduling=throughput,staggered=3 --serve staggered=4 --admit staggered=4 --robots 3"
    " --most-robots 3 --seconds 0.2 --fleet-seconds 0.5 --warm-up 0.2 --window 0.5 --views 1 --size 30 40"
    " --seeds 0 --admit-seeds 0 --within 9"
)
BENCH = Bench("fleet", measure, options, rows="fleet", gpu=True, smoke=SMOKE)

if __name__ == "__main__":
    sys.exit(main(BENCH))
