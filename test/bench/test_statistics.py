"""What benches compute of their figures: intervals, gains, ceilings, and what is drawn and chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import guided
import handover
import numpy as np
import pytest
import torch
from builders import make_config

from shared import roofline
from shared.closed_loop import Job, Log
from shared.intervals import doubling, interval
from shared.models import config_of
from shared.paired import bootstrap, gain
from shared.policies import random_policy
from shared.subjects import plain, random_observation, relative
from tables.forms import result
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES
from vla_accel_ros.models.config import PI0
from vla_accel_ros.tools.bench.subjects import Ours, random_inputs, random_model
from vla_accel_ros.tools.demo.measure import wilson
from vla_accel_ros.tools.demo_policy.rollout import Episode, Timing

CPU = torch.device("cpu")


def test_the_interval_is_students() -> None:
    result = interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
    assert result["mean"] == 4.5
    assert result["half"] == pytest.approx(2.3646 * math.sqrt(6.0 / 8.0), rel=0.01)


@pytest.mark.parametrize(
    ("part", "whole", "same"),
    [(-20.0, -10.0, True), (-20.0, 10.0, False), (-20.0, 0.5, True), (0.5, 9.0, True)],
)
def test_half_a_run_says_the_same_or_nothing(part: float, whole: float, same: bool) -> None:
    assert doubling({"mean": part, "half": 1.0}, {"mean": whole, "half": 1.0}) is same
    assert doubling({"mean": part}, {"mean": whole}) is same


def test_success_is_compared_scene_by_scene() -> None:
    first, then = [True] * 30 + [False] * 10, [True] * 34 + [False] * 6
    result = gain(first, then)
    assert (result["won_only_without"], result["won_only_with"]) == (0, 4)
    assert result["difference"] == pytest.approx(0.1)
    low, high = result["interval_95"]
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
    assert gain(then, first)["interval_95"] == pytest.approx((0.0569, 0.3404), abs=2e-4)


def test_the_bootstrap_covers_the_median_and_shrinks_with_more_values() -> None:
    rng = np.random.default_rng(1)
    few, many = bootstrap(rng.normal(5, 1, 10).tolist()), bootstrap(rng.normal(5, 1, 1000).tolist())
    assert few[0] < 5 < few[1] and many[0] < 5 < many[1]
    assert many[1] - many[0] < 0.3 * (few[1] - few[0])


def make_episode(
    time_s: float | None = 1.0, jerk: float = 200.0, seam: float = 0.1, seed: int = 0
) -> Episode:
    """time_s: None for a failure."""
    won = time_s is not None
    return Episode("task", "reach", seed, "normal", won, time_s or 4.0, jerk, 0, 0, 0.03, seam)


def test_measures_are_differences_of_pairs_and_shares_of_scenes() -> None:
    case = handover.CASES[0]
    without = [make_episode(1.0, 100.0, 0.10), make_episode(2.0, 200.0, 0.20), make_episode(None, 300.0, 0.0)]
    with_ = [make_episode(0.9, 90.0, 0.05), make_episode(2.2, 180.0, 0.10), make_episode(1.0, 270.0, 0.01)]
    row = handover.summary(handover.Played(case, without, with_))
    assert (row["without"]["won"], row["with"]["won"], row["without"]["n"]) == (2, 3, 3)
    assert row["jerk"]["median"] == pytest.approx(-20.0) and row["jerk"]["n"] == 3
    assert row["time_s"]["n"] == 2, "time is that of scenes in which both succeeded"
    twice = [
        handover.Played(case, without, with_),
        handover.Played(
            replace(case, condition="moved"), without, [replace(e, jerk=e.jerk * 2) for e in with_]
        ),
    ]
    (pooled,) = handover.pooled(twice)
    assert pooled["without"]["n"] == 6
    assert pooled["jerk"]["median"] == pytest.approx((0.9 + 1.8) / 2 - 1) and pooled["jerk"]["n"] == 3
    assert pooled["seam"]["median"] == pytest.approx(-0.5) and pooled["seam"]["n"] == 2


@pytest.mark.parametrize(
    ("views", "expected"), [(1, (0.33, 1.56, 1.58)), (2, (0.66, 3.04, 1.61)), (3, (0.99, 4.54, 1.64))]
)
def test_the_roofline_is_the_published_one_less_what_is_not_computed(
    views: int, expected: tuple[float, ...]
) -> None:
    """That one counts the whole last prefix layer, 1/18 of prefill, and slightly lower ceilings."""
    times = roofline.stages(PI0, views)
    for stage, published_ms in zip(("encode", "prefill", "denoise"), expected, strict=True):
        assert 0.90 * published_ms < times[stage] <= published_ms
    assert times["total"] == pytest.approx(sum(times[stage] for stage in ("encode", "prefill", "denoise")))


@torch.inference_mode()
def test_both_sides_of_the_comparison_compute_the_same(kind: str) -> None:
    config = make_config(kind)
    model, inputs = random_model(config, CPU), random_inputs(config, 2, 7, CPU)
    ours = Ours(model, inputs, steps=3)
    assert relative(ours.actions, plain(model, inputs, steps=3)()) < 1e-4
    for part in ours.parts().values():
        part()


def test_chunks_agree_with_the_one_before_as_they_say() -> None:
    policy = replace(random_policy(config_of("pi0", True), CPU, torch.float32), trained_delay=guided.DELAY)
    engine = Engine(policy, fast=True, steps=guided.STEPS)
    with engine.observe(random_observation(policy, 1, 8)) as prefix:
        agreed = guided.agreed(engine.act(prefix).actions)
        chunks = {name: engine.act(prefix, noise=7, agreement=terms) for name, terms in agreed.items()}
    guidance = agreed[guided.GUIDED]
    assert guidance is not None
    distances = {
        name: np.abs(chunk.actions[: guided.DELAY] - guidance.actions[: guided.DELAY]).max()
        for name, chunk in chunks.items()
    }
    assert distances[guided.COMMITTED] == 0.0
    assert max(distances[guided.GUIDED], distances[guided.EXACT]) < 0.5 * distances[guided.FREE]


def test_what_was_played_before_a_kill_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, job = tmp_path / "out" / "log", Job("reach", "static", Timing(), 3)
    log = Log(path, "1f")
    log.add(job, make_episode(1.0, seed=3))
    with path.open("a") as file:
        file.write('{"job": "broken o')
    reopened = Log(path, "1f")
    assert reopened.get(job) == make_episode(1.0, seed=3)
    with pytest.raises(ValueError, match="another policy"):
        Log(path, "2f")


def test_node_and_simulator_agree_in_the_published_run() -> None:
    document = result("fleet_agreement")
    rules = list(BUILT_IN[FLEET_RULES])
    assert [row["policy"] for row in document["rows"] if row["policy"] in rules] == rules
    for row in document["rows"]:
        assert abs(row["apart"]["avg"]) <= 3.0 and abs(row["apart"]["p95"]) <= 5.0


def test_closed_fleets_are_stationary_in_the_published_run() -> None:
    """By Little's law within 1 %, with the same sign at half the length; robots = rate x latency. `las` and
    three hundred robots need longer runs, and their rows say so."""
    for row in result("fleet_sim")["closed"]:
        if row["policy"] != "las" and row["robots"] <= 100:
            assert abs(row["little"]["mean"] - 1.0) <= 0.01 and row["same_sign"], row["policy"]
            served = row["tasks_per_min"]["mean"] / 60 * row["avg"]["mean"]
            assert served == pytest.approx(row["robots"], rel=0.02)
