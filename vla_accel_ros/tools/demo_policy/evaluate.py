"""Evaluate the demo policy: paired episodes of every family under every condition, with 95 % intervals.

Seed n is the same scene under all conditions, so a difference comes from the condition. Seeds start at 0 and
training seeds at a million, so no scene was trained on. The controls show what the success depends on:
`shuffled` gives the policy an instruction for another block while the original one is scored, `blank` shows
it grey images, and `still` is an arm that never moves (chance).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.precision import EXACT, PRECISIONS
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools.demo.measure import wilson
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import CONDITIONS, Episode, Session, Timing


def one_thread_each() -> None:
    """Limit a worker to one thread, before its first import of torch or OpenGL: there is one process for each
    core."""
    os.environ.update(LP_NUM_THREADS="0", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Plan:
    """What to evaluate.

    steps: denoise steps of a chunk. precision: see engine.stages.precision; None: the plain network.
    """

    policy: Path
    contract: Path
    episodes: int = 200
    conditions: tuple[str, ...] = CONDITIONS
    families: tuple[str, ...] = FAMILIES
    steps: int = DENOISE_STEPS
    timing: Timing = field(default_factory=Timing)
    precision: str | None = None

    def __post_init__(self) -> None:
        for name, values, choices in (
            ("conditions", self.conditions, CONDITIONS),
            ("families", self.families, FAMILIES),
        ):
            unknown = sorted(set(values) - set(choices))
            if unknown or not values:
                raise ValueError(f"{name} has {unknown or 'nothing'}; use some of {', '.join(choices)}.")
        if self.precision not in (None, *PRECISIONS):
            raise ValueError(f"precision is {self.precision!r}; use one of {', '.join(PRECISIONS)}.")
        if self.episodes < 1:
            raise ValueError(f"episodes is {self.episodes}; play at least 1.")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for the JSON, without the machine's paths."""
        return {
            "policy": self.policy.name,
            "contract": self.contract.name,
            "episodes": self.episodes,
            "seeds": [0, self.episodes - 1],
            "denoise_steps": self.steps,
            "period_s": self.timing.period / 30,
            "latency_s": self.timing.latency / 30,
            **({} if self.precision is None else {"precision": self.precision}),
        }


_session: Session | None = None


def _open_session(plan: Plan) -> None:
    global _session
    one_thread_each()
    contract = Contract.load(plan.contract)
    policy = load_policy(plan.policy, delta_mask=contract.delta_mask)
    fast, precision = plan.precision is not None, plan.precision or EXACT
    engine = Engine(policy, steps=plan.steps, fast=fast, precision=precision)
    _session = Session(engine, SimRobot(), contract, plan.timing)


def _play(job: tuple[str, int, str]) -> Episode:
    assert _session is not None
    family, seed, condition = job
    choices = tasks(family)
    return _session.play(choices[seed % len(choices)], seed, condition)


def evaluate(plan: Plan, processes: int) -> list[Episode]:
    """Play all episodes of the plan in parallel. The result's order does not depend on the number of
    processes."""
    jobs = [(f, seed, c) for f in plan.families for c in plan.conditions for seed in range(plan.episodes)]
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _open_session, (plan,)) as pool:
        return list(tqdm(pool.map(_play, jobs, chunksize=4), total=len(jobs), desc="episodes", mininterval=5))


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return success with its interval by family and condition, answers, time and jerk."""
    table: dict[str, Any] = {}
    for family in sorted({e.family for e in episodes}, key=FAMILIES.index):
        for condition in CONDITIONS:
            group = [e for e in episodes if (e.family, e.condition) == (family, condition)]
            if group:
                table.setdefault(family, {})[condition] = _row(group)
    normal = [e for e in episodes if e.condition == "normal"]
    questions, right = sum(e.answers_asked for e in normal), sum(e.answers_right for e in normal)
    if questions:
        share = right / questions
        table["answers"] = {"n": questions, "correct": share, "interval_95": wilson(right, questions)}
    return table


def _row(group: Sequence[Episode]) -> dict[str, Any]:
    won, answers = sum(e.success for e in group), sum(e.answers_asked for e in group)
    return {
        "n": len(group),
        "success": won / len(group),
        "interval_95": wilson(won, len(group)),
        "median_time_s": float(np.median([e.time_s for e in group if e.success])) if won else None,
        "median_jerk": float(np.median([e.jerk for e in group])),
        "answers_correct": sum(e.answers_right for e in group) / answers if answers else None,
    }


def lines(table: dict[str, Any]) -> Iterable[str]:
    """Yield the summary as a Markdown table."""
    yield "| task | condition | n | success | 95 % interval | median time s | jerk rad/s^3 | answers right |"
    yield "|---|---|---|---|---|---|---|---|"
    for family, rows in table.items():
        if family == "answers":
            continue
        for condition, row in rows.items():
            low, high = row["interval_95"]
            right = "-" if row["answers_correct"] is None else f"{100 * row['answers_correct']:.1f} %"
            time = "-" if row["median_time_s"] is None else f"{row['median_time_s']:.2f}"
            yield (
                f"| {family} | {condition} | {row['n']} | {100 * row['success']:.1f} % | "
                f"{100 * low:.1f}-{100 * high:.1f} % | {time} | {row['median_jerk']:.0f} | {right} |"
            )


def as_json(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Return every episode, for bench/results."""
    return [asdict(e) for e in episodes]
