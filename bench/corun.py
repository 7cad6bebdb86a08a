"""Requests of agents on one GPU: encode, prefill and decode at Poisson rates, under several schedulers.

    python bench/corun.py [--policies prefill_first chunked two_streams static adaptive planned fifo]
        [--loads 0.4 0.6 0.8] [--seconds S] [--at-once N] [--splits SMS ...] [--slots N] [--chunk TOKENS]
        [--seed N] [--robot]

The model has CogAgent's size and random weights (agents/model.py): 4.5 billion in the encoder at 1120 px, 9.4
billion in the language model; answers have 30 to 80 tokens. Arrivals are open-loop, and the same for every
scheduler. A load is the arrival rate divided by the highest rate that encode and prefill alone could serve;
for fifo, by the highest rate of whole requests. First every stage is timed alone and beside decoding, for
each split of the GPU. Each scheduler gets the settings that are best for these durations at the load it is
compared at (agents/tuning.py).

--at-once N: afterwards N requests come to each scheduler at once, which gives its highest request rate.
--robot: a robot's pi0 acts on 30 frames a second meanwhile; its latency is in the file.
bench/corun_simulated.py runs the same schedulers in simulated time on these durations.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from agents.captured import CHUNK, SLOTS, Captured
from agents.durations import Durations
from agents.measured import measure as time_stages
from agents.model import TINY, AgentConfig, AgentModel
from agents.robot import Robot
from agents.runner import AgentRunner
from agents.schedulers import COMPARED, FIFO, LANES, OURS, make
from agents.tuning import Settings, tuned
from agents.workload import TOKENS, Agents, Arrival, at_once, figures, poisson, within
from run import Bench, Given, Row, main
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.scheduling.scheduler import Scheduler

SPLITS = (8, 16, 24, 32, 48)
MOST = 4096
"""Arrivals drawn for a run; those within its seconds are used."""
AT_ONCE = 256
"""Most unfinished requests in an engine."""
ROBOT_S = 3.0
"""Seconds that the robot runs alone."""
PATIENCE_S = 20.0
"""Time allowed for the last answers of a run."""
SMALL_TOKENS, SMALL_FRONT_S = (3, 8), 0.1
"""Arrival rate for the tiny model, whose stages take less time than their scheduling."""


def measure(given: Given) -> Iterator[Row | None]:
    """Durations, then each load under each scheduler. Raises ValueError for invalid loads or seconds."""
    if not all(load > 0 for load in given.loads) or not given.seconds > 0:
        raise ValueError(f"loads are {given.loads} in {given.seconds} s; give numbers above 0.")
    if not 0 <= given.at_once <= AT_ONCE:
        raise ValueError(f"{given.at_once} requests at once: give 0 to {AT_ONCE}, which a queue takes.")
    began_s = time.monotonic()
    config = TINY if given.small else AgentConfig()
    chunk, splits = (8, ()) if given.small else (given.chunk, given.splits)
    tokens = SMALL_TOKENS if given.small else TOKENS
    model = AgentModel(config, given.device, given.dtype)
    # The robot's lanes get higher priority than all work of the agents.
    slots, urgent = given.slots, not given.robot
    captured = Captured(model, slots, splits, chunk, urgent=urgent)
    durations = time_stages(captured)
    describe(given, durations, tokens, chunk, config.prompt, slots)
    given.document |= {
        "weights": dict(zip(("encoder", "language"), model.weights, strict=True)),
        "set_up_s": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(given.document["durations"]), flush=True)
    robot = Robot(given.device, given.dtype, given.small) if given.robot else None
    if robot is not None:
        with robot.acting() as acted:
            time.sleep(min(given.seconds, ROBOT_S))
        given.document["robot_alone"] = acted.figures()
    for load in loads(given):
        settings = tuned(durations, load, tokens, slots)
        note(given, load, settings)
        for name in given.policies:
            hz = rate_hz(name, load, durations, tokens)
            if given.small:
                hz = (load or 1.0) / SMALL_FRONT_S
            arrivals = within(poisson(hz, MOST, given.seed, tokens), given.seconds)
            if load is None:
                arrivals = at_once(given.at_once, given.seed, tokens)
            policy = make(name, settings, chunk, durations.sms)
            yield row_of(name, load, hz, case_of(captured, name, policy, arrivals, hz, robot))
    yield from compared(given)


def loads(given: Given) -> tuple[float | None, ...]:
    """The loads; None: all requests come at once."""
    return (*given.loads, *((None,) if given.at_once else ()))


def rate_hz(name: str, load: float | None, durations: Durations, tokens: tuple[int, int]) -> float:
    """The arrival rate; if all come at once, the most that encode and prefill alone could serve."""
    one_s = durations.whole_s(sum(tokens) / 2) if name == FIFO else durations.front_s()
    return (1.0 if load is None else load) / one_s


def note(given: Given, load: float | None, settings: Settings) -> None:
    given.document["settings"].append({"load": load, **settings.document()})
    print("expected by the chain, s:", json.dumps(given.document["settings"][-1]["expected_s"]), flush=True)


def describe(
    given: Given, durations: Durations, tokens: tuple[int, int], chunk: int, prompt: int, slots: int
) -> None:
    given.document |= {
        "chunk": chunk, "prompt": prompt, "slots": slots, "answers": list(tokens),
        "seeds": f"weights 0, screen 0, arrivals {given.seed}", "durations": durations.document(),
        "settings": [], "equation_3": durations.best(sum(tokens) / 2),
    }  # fmt: skip


def row_of(name: str, load: float | None, rate_hz: float, row: Row) -> Row:
    return {"policy": name, "load": load, "rate_hz": round(rate_hz, 4), **row}


def compared(given: Given) -> Iterator[None]:
    given.document["against_best"] = against_best(given.document["cases"])
    yield None


def case_of(
    captured: Captured,
    name: str,
    policy: Policy,
    arrivals: Sequence[Arrival],
    rate_hz: float,
    robot: Robot | None = None,
) -> dict[str, Any]:
    """The figures of one scheduler, and of the robot beside it if there is one."""
    device = captured.model.device
    streams = {lane: torch.cuda.Stream(device) for lane in LANES[name] if device.type == "cuda"}
    lanes = [lane_on(lane, streams) for lane in LANES[name]]
    runner = AgentRunner(captured.pool, captured.config.prompt, captured)
    with ExitStack() as beside:
        acted = None if robot is None else beside.enter_context(robot.acting())
        served = serve(Scheduler(runner, policy, lanes=lanes), arrivals)
    found: dict[str, Any] = dict(figures(served, rate_hz, whole=name == FIFO))
    found["open"] = mean_open(runner)
    return found if acted is None else found | {"robot": acted.figures()}


def lane_on(name: str, streams: Mapping[str, torch.cuda.Stream]) -> Lane:
    """A lane, with its own stream on a GPU."""
    return Lane(name, partial(torch.cuda.stream, streams[name])) if streams else Lane(name)


def serve(scheduler: Scheduler, arrivals: Sequence[Arrival]) -> list[Any]:
    """Submit each request when it arrives, and wait for the last; returns what happened to each."""
    agents = Agents(scheduler)
    scheduler.start()
    try:
        begin_s = scheduler.now_s()
        for arrival in arrivals:
            came_s = begin_s + arrival.at_s
            time.sleep(max(0.0, came_s - scheduler.now_s()))
            agents.submit(arrival, came_s)
        agents.idle.wait(PATIENCE_S)
    finally:
        scheduler.stop()
    return agents.served


def against_best(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each load: how far our schedulers' latency is below the best of the others, as a share of that, and
    their requests a second relative to the most of the others. fifo has another rate and is not compared."""
    found = []
    for load in dict.fromkeys(case["load"] for case in cases):
        done = [case for case in cases if case["load"] == load and "max_s" in case and case["policy"] != FIFO]
        others = [case for case in done if case["policy"] not in OURS]
        for ours in done if others else ():
            if ours["policy"] not in OURS:
                continue
            row = {"policy": ours["policy"], "load": load}
            for what in ("max", "average"):
                best = min(case[f"{what}_s"] for case in others)
                row[f"{what}_below"] = round(1 - ours[f"{what}_s"] / best, 4)
            row["requests_over"] = round(ours["requests_s"] / max(one["requests_s"] for one in others), 4)
            found.append(row)
    return found


def mean_open(runner: AgentRunner) -> float | None:
    """Mean number of answers in a decode step."""
    steps = runner.steps.total()
    return round(sum(rows * count for rows, count in runner.steps.items()) / steps, 3) if steps else None


def options(add: Callable[..., Any]) -> None:
    """Schedulers, loads and the model's graphs."""
    add("--policies", nargs="+", choices=tuple(LANES), default=COMPARED)
    add("--loads", nargs="+", type=float, default=(0.4, 0.6, 0.8))
    add("--seconds", type=float, default=10.0, help="of arrivals in each case (default: %(default)s)")
    add("--at-once", type=int, default=0, help="requests that come all at once, after the loads")
    add("--slots", type=int, default=SLOTS, help="requests that have begun, at most (default: %(default)s)")
    add("--splits", nargs="+", type=int, default=SPLITS, help="multiprocessors of decoding to choose from")
    add("--chunk", type=int, default=CHUNK, help="tokens of a chunked prefill (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")
    add("--robot", action="store_true", help="beside pi0, 2 views, 30 frames a second, on another engine")


SMOKE = "--small --seconds 0.5 --loads 0.6 --at-once 3 --slots 4 --robot"
BENCH = Bench("corun", measure, options, gpu=True, smoke=SMOKE)

if __name__ == "__main__":
    sys.exit(main(BENCH))
