"""Two ways to play the same scenes: what is played, what is kept of it, what the figures mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from handovers import comparisons, episodes
from handovers.comparisons import Case, Plan, Played
from handovers.episodes import Job, Log
from handovers.paired import gain
from vla_accel_ros.tools.demo_policy.evaluate import wilson
from vla_accel_ros.tools.demo_policy.rollout import Episode, Handover, Timing

ROOT = Path(__file__).parents[2]
FREE, COHERENT = Handover("blend", noise="fresh"), Handover("blend", noise="coherent")
CASE = Case("blend", "reach", "static", Timing(4, 4), FREE, COHERENT)


def make_episode(
    time_s: float | None = 1.0, jerk: float = 200.0, seam: float = 0.1, seed: int = 0
) -> Episode:
    """time_s: None for a failure."""
    won = time_s is not None
    return Episode("task", "reach", seed, "normal", won, time_s or 4.0, jerk, 0, 0, 0.03, seam)


def test_noises_are_compared_in_every_mode_on_the_same_scenes() -> None:
    plan = Plan(Path("policy"), Path("contract"), comparisons.noises(), 40)
    assert {case.title for case in plan.cases} == {"block", "async", "blend", "rtc"}
    assert {"static", "moved", "switched"} == {case.condition for case in plan.cases}
    for case in plan.cases:
        assert case.without.noise == "fresh" and case.with_ == replace(case.without, noise="coherent")
        assert case.without.mode == case.title
    assert len(plan.jobs) == len(set(plan.jobs)) == 2 * 40 * len(plan.cases) >= 600
    assert plan.as_dict()["episodes"] == len(plan.jobs)
    assert {job.seed for job in plan.jobs[: 2 * len(plan.cases)]} == {0}, "scene by scene"


def test_staggered_chunks_are_begun_before_the_last_is_done_and_played_once() -> None:
    plan = Plan(Path("policy"), Path("contract"), comparisons.staggered(), 20)
    assert all(case.timing.period < case.timing.latency for case in plan.cases)
    assert {(case.without.mode, case.with_.mode) for case in plan.cases} == {
        ("blend", "rtc"),
        ("blend", "blend"),
    }
    assert len(plan.jobs) == 20 * 3 * 4 < 2 * 20 * len(plan.cases), "free chunks are in two cases"


def test_a_plan_without_scenes_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds is 0"):
        Plan(Path("policy"), Path("contract"), (), 0)


def test_success_is_compared_scene_by_scene() -> None:
    first, then = [True] * 30 + [False] * 10, [True] * 34 + [False] * 6
    found = gain(first, then)
    assert (found["won_only_without"], found["won_only_with"]) == (0, 4)
    assert found["difference"] == pytest.approx(0.1)
    low, high = found["interval_95"]
    assert low < 0.1 < high
    crossed = gain(first, then[::-1])
    assert crossed["won_only_without"] == 6 and crossed["won_only_with"] == 10
    assert crossed["interval_95"][0] < low and crossed["interval_95"][1] > high, "paired, it is narrower"
    back = gain(then, first)
    assert back["interval_95"] == pytest.approx((-high, -low))


def test_success_in_every_scene_is_no_proof_of_equality() -> None:
    low, high = gain([True] * 40, [True] * 40)["interval_95"]
    short = 1.0 - wilson(40, 40)[0]
    assert (low, high) == pytest.approx((-short, short)) and short > 0.08


def test_newcombes_published_example() -> None:
    """Newcombe 1998, Statistics in Medicine 17:2635, table III, method 10: 36, 12, 2 and 0 of 50 pairs."""
    first = [True] * 36 + [True] * 12 + [False] * 2
    then = [True] * 36 + [False] * 12 + [True] * 2
    low, high = gain(then, first)["interval_95"]
    assert (low, high) == pytest.approx((0.0569, 0.3404), abs=2e-4)


def test_measures_are_differences_of_pairs_and_shares_of_scenes() -> None:
    without = [make_episode(1.0, 100.0, 0.10), make_episode(2.0, 200.0, 0.20), make_episode(None, 300.0, 0.0)]
    with_ = [make_episode(0.9, 90.0, 0.05), make_episode(2.2, 180.0, 0.10), make_episode(1.0, 270.0, 0.01)]
    (row,) = comparisons.summary([Played(CASE, without, with_)])
    assert (row["without"]["won"], row["with"]["won"], row["without"]["n"]) == (2, 3, 3)
    assert row["jerk"]["median"] == pytest.approx(-20.0) and row["jerk"]["n"] == 3
    assert row["time_s"]["n"] == 2, "time is that of scenes in which both succeeded"
    moved = replace(CASE, condition="moved")
    twice = [
        Played(CASE, without, with_),
        Played(moved, without, [replace(e, jerk=e.jerk * 2) for e in with_]),
    ]
    (pooled,) = comparisons.pooled(twice)
    assert pooled["without"]["n"] == 6
    assert pooled["jerk"]["median"] == pytest.approx((0.9 + 1.8) / 2 - 1) and pooled["jerk"]["n"] == 3
    assert pooled["seam"]["median"] == pytest.approx(-0.5) and pooled["seam"]["n"] == 2
    head, rule, body = comparisons.lines([row])
    assert head.count("|") == rule.count("|") == body.count("|")
    assert body.startswith("| reach | static | 4 | blend | 2, 3 of 3 | 100, 50, -50 ")
    head, rule, body = comparisons.pooled_lines([pooled])
    assert head.count("|") == rule.count("|") == body.count("|")
    assert body.startswith("| blend | 4, 6 of 6 | +33.3 (")
    (kept,) = comparisons.as_json([Played(CASE, without, with_)])
    assert kept["with success"] == [1.0, 1.0, 1.0] and kept["without jerk"] == [100.0, 200.0, 300.0]


def test_the_published_table_is_that_of_the_results() -> None:
    """Signs, too, which test_figures.py does not compare."""
    rows = json.loads((ROOT / "bench" / "results" / "handover.json").read_text())["noise"]["pooled"]
    page = (ROOT / "docs" / "lab" / "performance.md").read_text()
    assert "\n".join(comparisons.pooled_lines(rows)) in page


def test_what_was_played_before_a_kill_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Job] = []

    def play(jobs: Sequence[Job], policy: Path, contract: Path, processes: int) -> Iterator[Episode]:
        for job in jobs:
            done.append(job)
            yield make_episode(jerk=100.0 + job.seed, seed=job.seed)

    monkeypatch.setattr(episodes, "_playing", play)
    path, given = tmp_path / "out" / "log", (Path("policy"), Path("contract"))
    jobs = [Job("reach", "static", Timing(), FREE, seed) for seed in range(5)]
    running = episodes.played(jobs, *given, log=Log(path, "1f"))
    first = [next(running) for _ in range(3)]
    with path.open("a") as file:
        file.write('{"job": "broken o')
    assert list(episodes.played(jobs, *given, log=Log(path, "1f")))[:3] == first
    assert [job.seed for job in done] == [0, 1, 2, 3, 4]
    assert list(episodes.played(jobs[::-1], *given, log=Log(path, "1f")))[::-1][:3] == first
    assert len(done) == 5 and all(json.loads(line) for line in path.read_text().splitlines())
    with pytest.raises(ValueError, match="has the episodes of another policy: remove it"):
        Log(path, "2f")
