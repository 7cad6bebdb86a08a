"""The schedulers of bench/corun.py in simulated time, on the durations of stages that it measured.

python bench/corun_simulated.py [--durations bench/results/corun.json] [--requests 10000] [--at-once N]
    [--policies ...] [--loads 0.4 0.6 0.8] [--seed N]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from corun import compared, describe, loads, mean_open, note, rate_hz, row_of

from agents.durations import read
from agents.schedulers import COMPARED, FIFO, LANES, make
from agents.simulation import Simulation
from agents.tuning import tuned
from agents.workload import at_once, figures, poisson
from run import Bench, Given, Row, main
from tables.forms import RESULTS


def measure(given: Given) -> Iterator[Row | None]:
    """Each load under each scheduler. Raises ValueError without a file of durations."""
    if not given.durations.is_file():
        raise ValueError(f"{given.durations} is not there; measure first, or name a file of durations.")
    measured = json.loads(given.durations.read_text())
    durations, chunk, prompt = read(measured["durations"]), measured["chunk"], measured["prompt"]
    tokens = measured["answers"][0], measured["answers"][1]
    slots = max(durations.decode_s)
    describe(given, durations, tokens, chunk, prompt, slots)
    given.document |= {"simulated": True, "durations_of": measured["machine"]}
    for load in loads(given):
        settings = tuned(durations, load, tokens, slots)
        note(given, load, settings)
        for name in given.policies:
            hz = rate_hz(name, load, durations, tokens)
            arrivals = poisson(hz, given.requests, given.seed, tokens)
            if load is None:
                arrivals = at_once(given.at_once, given.seed, tokens)
            policy = make(name, settings, chunk, durations.sms)
            simulation = Simulation(policy, LANES[name], durations, prompt, slots)
            row = figures(simulation.run(arrivals), hz, whole=name == FIFO)
            yield row_of(name, load, hz, row | {"open": mean_open(simulation.runner)})
    yield from compared(given)


def options(add: Callable[..., Any]) -> None:
    """Schedulers, loads and requests."""
    add("--durations", type=Path, default=RESULTS / "corun.json", help="(default: bench/results/corun.json)")
    add("--policies", nargs="+", choices=tuple(LANES), default=COMPARED)
    add("--loads", nargs="+", type=float, default=(0.4, 0.6, 0.8))
    add("--at-once", type=int, default=0, help="requests that come all at once, after the loads")
    add("--requests", type=int, default=10_000, help="in each case (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")


BENCH = Bench("corun_simulated", measure, options, smoke="--requests 50 --loads 0.6 --policies fifo adaptive")

if __name__ == "__main__":
    sys.exit(main(BENCH))
