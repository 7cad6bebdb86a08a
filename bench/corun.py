"""Requests of agents on one GPU: encode, prefill and decode at Poisson rates, under several schedulers.

    python bench/corun.py [--policies prefill_first chunked two_streams static adaptive planned fifo]
        [--loads 0.4 0.6 0.8] [--seconds S] [--at-once N] [--splits SMS ...] [--slots N] [--chunk TOKENS]
        [--seed N] [--robot]
    python bench/corun.py --simulate [bench/results/corun.json] [--requests 10000] [--at-once N]

The model has CogAgent's size and random weights (agents/model.py): 4.5 billion in the encoder at 1120 px, 9.4
billion in the language model; answers have 30 to 80 tokens. Arrivals are open-loop, and the same for every
scheduler. A load is the arrival rate divided by the highest rate that encode and prefill alone could serve;
for fifo, by the highest rate of whole requests. First every stage is timed alone and beside decoding, for
each split of the GPU. Each scheduler gets the settings that are best for these durations at the load it is
compared at (agents/tuning.py). Prints a table and writes bench/results/corun.json.

--at-once N: afterwards N requests come to each scheduler at once, which gives its highest request rate.
--robot: a robot's pi0 acts on 30 frames a second meanwhile; its latency is in the file.
--simulate runs the same schedulers in simulated time on the durations of such a file; its figures are
labelled simulated. --small runs a tiny model on a CPU to try the command; its figures mean nothing. Both
write only to --out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agents.captured import CHUNK, SLOTS, Captured
from agents.durations import Durations, read
from agents.measured import measure
from agents.model import TINY, AgentConfig, AgentModel
from agents.robot import Robot
from agents.runner import AgentRunner
from agents.schedulers import COMPARED, FIFO, LANES, OURS, make
from agents.simulation import Simulation
from agents.tuning import Settings, tuned
from agents.workload import TOKENS, Agents, Arrival, at_once, figures, poisson, within
from full_size.command import RESULTS, measuring, place
from full_size.figures import write
from full_size.gpu import alone, gpu_id
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.scheduling.scheduler import Scheduler
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure or simulate; returns the exit status."""
    parser = measuring(__doc__, run, "corun")
    add = parser.add_argument
    add("--policies", nargs="+", choices=tuple(LANES), default=COMPARED)
    add("--loads", nargs="+", type=float, default=(0.4, 0.6, 0.8))
    add("--seconds", type=float, default=10.0, help="of arrivals in each case (default: %(default)s)")
    add("--at-once", type=int, default=0, help="requests that come all at once, after the loads")
    add("--slots", type=int, default=SLOTS, help="requests that have begun, at most (default: %(default)s)")
    add("--splits", nargs="+", type=int, default=SPLITS, help="multiprocessors of decoding to choose from")
    add("--chunk", type=int, default=CHUNK, help="tokens of a chunked prefill (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")
    add("--simulate", nargs="?", type=Path, const=RESULTS / "corun.json", help="durations to simulate with")
    add("--requests", type=int, default=10_000, help="in each simulated case (default: %(default)s)")
    add("--robot", action="store_true", help="beside pi0, 2 views, 30 frames a second, on another engine")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure or simulate, print, write. Raises RuntimeError without a CUDA device, ValueError for invalid
    loads or seconds."""
    if not all(load > 0 for load in arguments.loads) or not arguments.seconds > 0:
        raise ValueError(f"loads are {arguments.loads} in {arguments.seconds} s; give numbers above 0.")
    if not 0 <= arguments.at_once <= AT_ONCE:
        raise ValueError(f"{arguments.at_once} requests at once: give 0 to {AT_ONCE}, which a queue takes.")
    if arguments.simulate is not None:
        return simulate(arguments)
    device, dtype, out = place(arguments)
    config = TINY if arguments.small else AgentConfig()
    chunk, splits = (8, ()) if arguments.small else (arguments.chunk, arguments.splits)
    tokens = SMALL_TOKENS if arguments.small else TOKENS
    with alone(gpu_id(device)):
        began_s = time.monotonic()
        model = AgentModel(config, device, dtype)
        # The robot's lanes get higher priority than all work of the agents.
        slots, urgent = arguments.slots, not arguments.robot
        captured = Captured(model, slots, splits, chunk, urgent=urgent)
        durations = measure(captured)
        document = _document(arguments, durations, tokens, chunk, config.prompt, slots) | {
            "weights": dict(zip(("encoder", "language"), model.weights, strict=True)),
            "dtype": str(dtype).removeprefix("torch."),
            "set_up_s": round(time.monotonic() - began_s, 1),
        }
        print(json.dumps(document["durations"]), HEAD, sep="\n", flush=True)
        robot = Robot(device, dtype, arguments.small) if arguments.robot else None
        if robot is not None:
            with robot.acting() as acted:
                time.sleep(min(arguments.seconds, ROBOT_S))
            document["robot_alone"] = acted.figures()
        for load in _loads(arguments):
            settings = tuned(durations, load, tokens, slots)
            _note(document, load, settings)
            for name in arguments.policies:
                rate_hz = _rate_hz(name, load, durations, tokens)
                if arguments.small:
                    rate_hz = (load or 1.0) / SMALL_FRONT_S
                arrivals = within(poisson(rate_hz, MOST, arguments.seed, tokens), arguments.seconds)
                if load is None:
                    arrivals = at_once(arguments.at_once, arguments.seed, tokens)
                policy = make(name, settings, chunk, durations.sms)
                found = case_of(captured, name, policy, arrivals, rate_hz, robot)
                _add(document, name, load, rate_hz, found, out)
    return 0


def _loads(arguments: argparse.Namespace) -> tuple[float | None, ...]:
    """The loads; None: all requests come at once."""
    return (*arguments.loads, *((None,) if arguments.at_once else ()))


def _rate_hz(name: str, load: float | None, durations: Durations, tokens: tuple[int, int]) -> float:
    """The arrival rate; if all come at once, the most that encode and prefill alone could serve."""
    one_s = durations.whole_s(sum(tokens) / 2) if name == FIFO else durations.front_s()
    return (1.0 if load is None else load) / one_s


def _note(document: dict[str, Any], load: float | None, settings: Settings) -> None:
    document["settings"].append({"load": load, **settings.document()})
    print("expected by the chain, s:", json.dumps(document["settings"][-1]["expected_s"]), flush=True)


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
    found["open"] = _open(runner)
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


def simulate(arguments: argparse.Namespace) -> int:
    """Run the same schedulers in simulated time."""
    if not arguments.simulate.is_file():
        raise ValueError(f"{arguments.simulate} is not there; measure first, or name a file of durations.")
    measured = json.loads(arguments.simulate.read_text())
    durations, chunk, prompt = read(measured["durations"]), measured["chunk"], measured["prompt"]
    tokens = measured["answers"][0], measured["answers"][1]
    document = _document(arguments, durations, tokens, chunk, prompt, max(durations.decode_s)) | {
        "simulated": True,
        "durations_of": measured["machine"],
        "requests": arguments.requests,
    }
    slots = max(durations.decode_s)
    print("simulated, on the durations of", arguments.simulate)
    print(HEAD)
    for load in _loads(arguments):
        settings = tuned(durations, load, tokens, slots)
        _note(document, load, settings)
        for name in arguments.policies:
            rate_hz = _rate_hz(name, load, durations, tokens)
            arrivals = poisson(rate_hz, arguments.requests, arguments.seed, tokens)
            if load is None:
                arrivals = at_once(arguments.at_once, arguments.seed, tokens)
            policy = make(name, settings, chunk, durations.sms)
            simulation = Simulation(policy, LANES[name], durations, prompt, slots)
            found = figures(simulation.run(arrivals), rate_hz, whole=name == FIFO)
            _add(document, name, load, rate_hz, found | {"open": _open(simulation.runner)}, arguments.out)
    return 0


def _document(
    arguments: argparse.Namespace,
    durations: Durations,
    tokens: tuple[int, int],
    chunk: int,
    prompt: int,
    slots: int,
) -> dict[str, Any]:
    return {
        "seconds": arguments.seconds,
        "chunk": chunk,
        "prompt": prompt,
        "slots": slots,
        "answers": list(tokens),
        "seeds": f"weights 0, screen 0, arrivals {arguments.seed}",
        **provenance(),
        "durations": durations.document(),
        "settings": [],
        "equation_3": durations.best(sum(tokens) / 2),
        "cases": [],
        "against_best": [],
    }


def _add(
    document: dict[str, Any],
    name: str,
    load: float | None,
    rate_hz: float,
    found: dict[str, Any],
    out: Path | None,
) -> None:
    """Add a case to the document, its file and the table."""
    case = {"policy": name, "load": load, "rate_hz": round(rate_hz, 4), **found}
    document["cases"].append(case)
    document["against_best"] = against_best(document["cases"])
    print(line(case), flush=True)
    if out is not None:
        file = "corun_simulated.json" if document.get("simulated") else "corun.json"
        write(out / file, document)  # an interrupted run keeps its results


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


def _open(runner: AgentRunner) -> float | None:
    """Mean number of answers in a decode step."""
    steps = runner.steps.total()
    return round(sum(rows * count for rows, count in runner.steps.items()) / steps, 3) if steps else None


HEAD = (
    f"{'':20}{'load':>6}{'lost/of':>10}{'average':>9}{'p50':>8}{'p99':>8}{'max s':>8}{'req/s':>8}{'first':>8}"
    f"{'token ms':>10}{'open':>7}{'used':>7}{'queue':>8}{'M/G/1':>8}{'same':>8}"
)


def line(case: dict[str, Any]) -> str:
    """Return a line of the table."""
    load = "all" if case["load"] is None else f"{case['load']:.2f}"
    head = f"{case['policy']:20}{load:>6}{case['lost']:5d}/{case['requests']:<4d}"
    if "max_s" not in case:
        return f"{head}  nothing was finished: {case['why']}"
    queues = [case["queue_s"], case["queue_mg1_s"], case["queue_same_s"]]
    shown = "".join(f"{'-' if one is None else f'{one:.3f}':>8}" for one in queues)
    times = "".join(
        f"{case[name]:8.3f}" for name in ("p50_s", "p99_s", "max_s", "requests_s", "first_token_s")
    )
    return (
        f"{head}{case['average_s']:9.3f}{times}{1e3 * case['between_tokens_s']:10.2f}"
        f"{case['open'] or 0.0:7.2f}{case['utilisation']:7.3f}{shown}{_robot(case)}{_lost(case)}"
    )


def _lost(case: Mapping[str, Any]) -> str:
    return f"  lost: {case['why']}" if case["lost"] else ""


def _robot(case: Mapping[str, Any]) -> str:
    acted = case.get("robot")
    if not acted or "p99_ms" not in acted:
        return ""
    return f"  robot {acted['p50_ms']:.1f} / {acted['p99_ms']:.1f} ms, {acted['dropped']} dropped"


if __name__ == "__main__":
    sys.exit(main())
