"""What agreement with the previous chunk costs: guided and committed chunks beside free ones.

    python bench/guided.py [--kinds pi0 pi05] [--views V] [--runs N] [--plain N]

Full-size random weights. One prefix; `Engine.act` from it, timed by the host until the actions are in host
memory: free, guided (identity Jacobian) and with committed actions (inpainted), in turns, so that all three
see the same machine; then the graph of the ten steps alone, with the same inputs. `more` is the median over
the turns of what a chunk takes more than the free one of its turn. Then the same by steps of ten staggered
chunks: each waited for before the next is launched; and of a lane with a thread, as in a running stream,
which launches the next one behind it (there a figure is the mean of many chunks). With --plain N, N acts of
an engine in plain torch, with the exact Jacobian, too, which the captured stages do not have.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from run import Bench, Given, Row, main
from shared.models import KINDS, config_of
from shared.policies import random_policy
from shared.subjects import random_observation
from shared.timing import summary, synchronize
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import ACT, Act, Request, Waits
from vla_accel_ros.engine.stages.denoise.denoise import Form
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Agreement, Observation

STEPS, WARM_UP, IN_ROW = 10, 10, 100
DELAY, PAST = 4, 10
"""Actions that are committed, and actions of the previous chunk that are past when the new one begins."""

FREE, GUIDED, COMMITTED, EXACT = "free", "guided", "committed", "exact Jacobian"


def options(add: Callable[..., Any]) -> None:
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", type=int, choices=(1, 2, 3), default=2, help="number of cameras (default: %(default)s)")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--runs", type=int, default=500, help="chunks of each way (default: %(default)s)")
    add("--plain", type=int, default=0, metavar="N", help="chunks in plain torch, too (default: none)")


def measure(given: Given) -> Iterator[Row]:
    """A row for each model and path."""
    for kind in given.kinds:
        model = random_policy(config_of(kind, given.small), given.device, given.dtype)
        policy = replace(model, trained_delay=DELAY)
        frame = random_observation(policy, given.views, given.prompt)
        for paths in (whole, staggered, running, plain):
            if runs := given.plain if paths is plain else given.runs:
                yield from (
                    {"kind": kind, "path": path, **row} for path, row in paths(policy, frame, runs).items()
                )
            gc.collect()


def whole(policy: Policy, frame: Observation, runs: int) -> dict[str, Any]:
    """Chunks by themselves in captured stages, and the graph of the ten steps alone."""
    engine = Engine(policy, fast=True, steps=STEPS)
    engine.prepare([len(frame.images)], [len(policy.prompt(frame.instruction, frame.state))])
    acts = _acts(engine, frame, runs, (FREE, GUIDED, COMMITTED))
    stages = engine.runner.stages
    assert isinstance(stages, Stages)
    stage = stages.denoise(1, STEPS)

    def of(form: Form) -> Callable[[], None]:
        def replay() -> None:
            stage.use(form)
            stage.run()
            synchronize(policy.device)

        return replay

    forms = {FREE: Form.FREE, GUIDED: Form.GUIDED, COMMITTED: Form.COMMITTED}
    return {"act": acts, "graph": in_turns({name: of(form) for name, form in forms.items()}, engine, runs)}


def plain(policy: Policy, frame: Observation, runs: int) -> dict[str, Any]:
    """Chunks by themselves, in plain torch."""
    engine = Engine(policy, fast=False, steps=STEPS)
    return {"plain torch": _acts(engine, frame, runs, (FREE, GUIDED, COMMITTED, EXACT))}


def _acts(engine: Engine, frame: Observation, runs: int, names: Sequence[str]) -> dict[str, Any]:
    with engine.observe(frame) as prefix:
        agreements = agreed(engine.act(prefix).actions)

        def of(name: str) -> Callable[[], object]:
            return lambda: engine.act(prefix, agreement=agreements[name])

        return in_turns({name: of(name) for name in names}, engine, runs)


def staggered(policy: Policy, frame: Observation, runs: int) -> dict[str, Any]:
    """Steps of ten chunks in progress; each step ends one. All are of one way for a while, then of the
    next."""
    engine = Engine(policy, fast=True, steps=STEPS, staggered=STEPS, slots=2 * STEPS + 6)
    engine.prepare([len(frame.images)], [len(policy.prompt(frame.instruction, frame.state))])
    with engine.observe(frame) as prefix:
        agreements = agreed(engine.act(prefix).actions)

    times_by_way: dict[str, list[float]] = {name: [] for name in (FREE, GUIDED, COMMITTED)}
    for _ in range(max(1, runs // (2 * STEPS))):
        for name, times in times_by_way.items():
            for number in range(4 * STEPS):
                synchronize(policy.device)
                began_s = time.perf_counter()
                _step(engine, agreements[name])
                synchronize(policy.device)
                if number >= 2 * STEPS:  # the chunks of the way before are over
                    times.append(time.perf_counter() - began_s)
    engine.scheduler.cancel(*engine.scheduler.requests)
    return {"staggered step": _compared(times_by_way)}


def running(policy: Policy, frame: Observation, runs: int) -> dict[str, Any]:
    """Seconds of a chunk in full seats, in a lane with a thread, in turns."""
    engine = Engine(policy, fast=True, steps=STEPS, staggered=STEPS, slots=2 * STEPS + 6)
    engine.prepare([len(frame.images)], [len(policy.prompt(frame.instruction, frame.state))])
    scheduler, times_by_way = engine.scheduler, {name: list[float]() for name in (FREE, GUIDED, COMMITTED)}
    with engine.observe(frame) as prefix:
        agreements = agreed(engine.act(prefix).actions)
        scheduler.start()
        try:
            for _ in range(2 + max(1, runs // IN_ROW)):
                for name, times in times_by_way.items():
                    synchronize(policy.device)
                    began_s = time.perf_counter()
                    requests = [
                        scheduler.submit(
                            Request(Act(agreement=agreements[name]), prefix=prefix, waits=Waits.ROOM)
                        )
                        for _ in range(IN_ROW)
                    ]
                    for request in requests:
                        scheduler.wait(request)
                    times.append((time.perf_counter() - began_s) / IN_ROW)
        finally:
            scheduler.stop()
    return {"staggered, running": _compared({name: times[2:] for name, times in times_by_way.items()})}


def _step(engine: Engine, agreement: Agreement | None) -> None:
    """A step in which another chunk of the newest frame is always wanted."""
    scheduler = engine.scheduler
    if not any(request.want == ACT and not request.begun for request in scheduler.requests):
        act = Request(Act(commits=lambda stamp_ns: DELAY + 1, agreement=agreement), waits=Waits.NEWS)
        scheduler.submit(act)
    scheduler.step()


def agreed(previous: np.ndarray) -> Mapping[str, Agreement | None]:
    """What a new chunk is made to agree with, PAST actions after the previous one [H, D] began."""
    continuation = previous[PAST:] if len(previous) > PAST else previous
    guided = Agreement(
        "guidance", continuation, DELAY, len(continuation), "LINEAR", "identity", float(STEPS), 0
    )
    return {
        FREE: None,
        GUIDED: guided,
        COMMITTED: Agreement("trained", continuation[:DELAY], DELAY, DELAY, "", "", 0.0, 0),
        EXACT: replace(guided, jacobian="exact"),
    }


def in_turns(ways: Mapping[str, Callable[[], object]], engine: Engine, runs: int) -> dict[str, Any]:
    """Milliseconds of each way, which begins on an idle device, in turns."""
    device = engine.policy.device
    times_by_way: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM_UP + runs):
        for name, work in ways.items():
            synchronize(device)
            began_s = time.perf_counter()
            work()
            times_by_way[name].append(time.perf_counter() - began_s)
    return _compared({name: times[WARM_UP:] for name, times in times_by_way.items()})


def _compared(taken: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Median and p99 of each, and the median of what it takes more than the free one of the same turn."""
    ms = {name: 1e3 * np.array(times) for name, times in taken.items()}
    rows: dict[str, Any] = {name: summary(times) for name, times in ms.items()}
    for name, times in ms.items():
        if name != FREE:
            more = float(np.median(times - ms[FREE]))
            rows[name] |= {
                "more_ms": round(more, 4),
                "more_percent": round(100 * more / rows[FREE]["p50_ms"], 2),
            }
    return rows


BENCH = Bench(
    "guided",
    measure,
    options,
    about={"steps": STEPS, "seeds": "weights 0, observation 0, noise: the number of the request"},
    gpu=True,
    smoke="--small --kinds pi0 --runs 20 --plain 2",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
