"""What bench/solvers.py makes of drafts, later times and episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import make_observation, make_policy
from solving import closed, later
from solving.closed import DEFAULT, Played, Way
from solving.drafts import Counts, Drafting
from torch import Tensor

from handovers.episodes import CONDITIONS
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.tools.demo_policy.rollout import Episode

STEPS = 4


def chunks(tolerance: float | None, period_ns: int) -> tuple[list[np.ndarray], Counts]:
    """Of three frames; the noise of each is its number."""
    engine = Engine(make_policy(), steps=STEPS, step_dt_s=0.1)
    drafting = Drafting.of(engine, tolerance) if tolerance is not None else None
    if drafting is not None:
        drafting.compare = True
    made = []
    for number in range(3):
        observation = replace(make_observation(1), stamp_ns=number * period_ns)
        with engine.observe(observation) as prefix:
            made.append(engine.act(prefix, noise=5).actions)
    return made, Counts() if drafting is None else drafting.counts


def test_nothing_is_accepted_within_nothing_and_the_chunk_is_the_ordinary_one() -> None:
    ordinary, _ = chunks(None, 100_000_000)
    ours, counts = chunks(0.0, 100_000_000)
    for one, other in zip(ours, ordinary, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert (counts.chunks, counts.accepted, counts.whole) == (2, 0, 0)
    assert counts.as_dict(STEPS)["forwards"] == STEPS
    assert max(counts.errors) < 1e-5


def test_everything_is_accepted_within_anything_and_costs_one_forward() -> None:
    ours, counts = chunks(1e9, 100_000_000)
    ordinary, _ = chunks(None, 100_000_000)
    assert (counts.chunks, counts.accepted, counts.whole) == (2, 2 * STEPS, 2)
    assert counts.as_dict(STEPS)["forwards"] == 1 and len(counts.errors) == 2
    np.testing.assert_allclose(ours[0], ordinary[0], atol=2e-5)
    assert not np.allclose(ours[1], ordinary[1], atol=1e-3)


def test_a_draft_that_is_over_is_none() -> None:
    ours, counts = chunks(1e9, 100_000_000_000)
    ordinary, _ = chunks(None, 100_000_000_000)
    assert counts.chunks == 0
    np.testing.assert_allclose(ours[2], ordinary[2], atol=2e-5)


def test_later_times_end_at_the_actions_and_are_of_the_solvers_order() -> None:
    def velocity(x: Tensor, t: float) -> Tensor:
        return 2.0 * x * t

    start = torch.ones(1, 1, 1, dtype=torch.float64)
    exact = np.exp(-1.0)
    ways = later.ways()
    assert list(ways) == ["euler 10, later", "ab2 4, later", "ab2 5, later", "ab2 6, later"]
    error = {name: abs(way(velocity, start).item() - exact) for name, way in ways.items()}
    assert error["ab2 6, later"] < error["ab2 4, later"] < error["euler 10, later"] < 0.1
    fine = [abs(later._integrate("ab2", n)(velocity, start).item() - exact) for n in (64, 128)]
    assert fine[0] / fine[1] == pytest.approx(4.0, rel=0.1)


def test_a_row_says_how_often_and_against_the_default() -> None:
    def played(won: bool, drafts: Counts | None = None) -> Played:
        figures = {"answers_right": 0, "answers_asked": 0, "tracking": 0.0, "seam": 0.02}
        return Played(Episode("t", "reach", 0, "normal", won, 1.5, jerk=200.0, **figures), drafts)  # type: ignore[arg-type]

    drafted = Way("euler", 10, 0.2)
    cells = [
        (way, condition, [played(won, drafts), played(True, drafts)])
        for way, won, drafts in ((DEFAULT, True, None), (drafted, False, Counts(10, 80, 6)))
        for condition in CONDITIONS
    ]
    default, other = closed.summary(cells)
    assert (default["won"], default["n"], other["won"]) == (6, 6, 3)
    assert other["against_default"]["difference"] == -0.5 and "drafts" not in default
    assert other["drafts"]["accepted_steps"] == 8.0 and other["drafts"]["chunks"] == 60
    # 2 steps left on average, of which that of the first disagreement was computed for 4 of 10 chunks.
    assert other["drafts"]["forwards"] == pytest.approx(1 + 2.0 - 0.4)
    lines = list(closed.lines([default, other]))
    assert lines[3].startswith("| euler 10, drafts within 0.2 | 1 | 1 | 1 | 3 of 6 (")
