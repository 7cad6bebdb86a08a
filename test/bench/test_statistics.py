"""What benches compute of their figures: intervals, gains, ceilings, and what is drawn and chosen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import block_shapes
import fleet_replicas
import guided
import handover
import numpy as np
import pytest
import torch
from builders import make_config

from fleets.admitting import half
from fleets.loads import make_trace, most_robots
from fleets.serving import options_of
from grids.oxygen import arrivals
from shaping.fit import fitted
from shaping.measured import load
from shared import roofline
from shared.closed_loop import Job, Log
from shared.intervals import doubling, interval
from shared.models import config_of, page_locked
from shared.paired import bootstrap, gain
from shared.roofline import Ceilings, Op, product
from shared.subjects import plain, random_observation, relative
from shared.timing import Pinned
from tables.forms import RESULTS, result
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES
from vla_accel_ros.kernels.block_shapes import ROWS
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.tools.bench.policies import random_policy
from vla_accel_ros.tools.bench.subjects import Ours, random_inputs, random_model
from vla_accel_ros.tools.demo_policy.evaluate import wilson
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
    case = handover.noises()[0]
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


def test_an_op_takes_the_longer_of_its_bytes_and_its_arithmetic() -> None:
    ceilings = Ceilings(bandwidth=1e9, arithmetic=1e12)
    assert Op("bytes", 3, 2e3, 1e3).us(ceilings) == pytest.approx(6.0)
    assert Op("flops", 1, 2e3, 5e6).us(ceilings) == pytest.approx(5.0)
    op = product("p", 1, rows=3, columns=5, inner=7)
    assert (op.bytes, op.flops) == (70, 210)


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


@pytest.mark.parametrize("config", [PI0, PI05], ids=["pi0", "pi05"])
def test_kernels_of_a_step_sum_to_the_step(config: PiConfig) -> None:
    times_us = roofline.kernels_us(config, 2, 20)
    layer = sum(times_us[name] for name in ("rotary_qkv", "attend", "project o", "gated_up", "project down"))
    step = 18 * layer + times_us["embed_actions"] + times_us["read_out"]
    assert step == pytest.approx(1e3 * roofline.stages(config, 2, steps=1)["denoise"])


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@torch.inference_mode()
def test_both_sides_of_the_comparison_compute_the_same(kind: str) -> None:
    config = make_config(kind)
    model, inputs = random_model(config, CPU), random_inputs(config, 2, 7, CPU)
    ours = Ours(model, inputs, steps=3)
    assert relative(ours.actions, plain(model, inputs, steps=3)()) < 1e-4
    for part in ours.parts().values():
        part()


def test_constants_are_fitted_to_what_was_measured() -> None:
    """To launches that take three times as long: all that a search may change is made slower."""
    _, gpu, cases = load(RESULTS / "block_shapes.json")
    few = [case for case in cases if "encode" in case.name and case.processors == 132][:6]
    slower = [case._replace(times={config: 3 * us for config, us in case.times.items()}) for case in few]
    constants, error = fitted("ROWS", slower, gpu, 80, 0)
    assert error < fitted("ROWS", slower, gpu, 0, 0)[1]
    assert (
        constants.start_us + constants.block_us + constants.latency_us
        > ROWS.start_us + ROWS.block_us + ROWS.latency_us
    )


def test_a_file_of_block_shapes_is_compared_again(tmp_path: Path) -> None:
    document = result("block_shapes")
    published, document["compared"] = document["compared"], []
    file = tmp_path / "block_shapes.json"
    file.write_text(json.dumps(document))
    block_shapes.again(file)
    for row, other in zip(json.loads(file.read_text())["compared"], published, strict=True):
        for way in ("chosen", "by_count", "table"):  # processors differ in a mean's last bit
            assert row.pop(way) == pytest.approx(other.pop(way), rel=1e-9)
        assert row == other


def test_page_locked_tensors_are_counted() -> None:
    """Without a GPU nothing can be page-locked: what is counted is that Python asks for it."""

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        return torch.overrides.handle_torch_function(_pinned, (tensor,), tensor)

    def _pinned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    _pinned.__name__ = "pin_memory"
    with Pinned() as pinned:
        torch.zeros(5)
        pin_memory(torch.zeros(3, dtype=torch.int32))
        pin_memory(torch.zeros(2))
    assert (pinned.tensors, pinned.bytes) == (2, 20)


def test_a_frame_in_page_locked_memory_is_the_same() -> None:
    policy = random_policy(config_of("pi0", True), CPU, torch.float32)
    observation = random_observation(policy, 2, 8, (6, 8), seed=3)
    placed, registration = page_locked(observation)
    for name, image in observation.images.items():
        np.testing.assert_array_equal(placed.images[name], image)
    registration.end()


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


def test_arrivals_are_as_many_as_they_say() -> None:
    assert arrivals("uniform", 3, 9) == [[9], [9], [9]]
    poisson = [len(frame) for frame in arrivals("poisson", 4000, 9)]
    assert np.mean(poisson) == pytest.approx(1.0, abs=0.05) and max(poisson) > 2 and min(poisson) == 0
    mixed = [length for (length,) in arrivals("random length", 1000, 10)]
    assert set(mixed) == {2, 10} and np.mean(mixed) == pytest.approx(6.0, abs=0.3)


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


def test_a_trace_asks_at_its_rate_and_is_the_same_for_a_seed() -> None:
    trace = make_trace(5, hz=4.0, jitter=0.1, seconds=50.0, seed=3)
    assert trace == make_trace(5, 4.0, 0.1, 50.0, 3) != make_trace(5, 4.0, 0.1, 50.0, 4)
    assert [due.at_s for due in trace] == sorted(due.at_s for due in trace)
    for robot in {due.robot for due in trace}:
        requests = [due for due in trace if due.robot == robot]
        assert [due.number for due in requests] == list(range(len(requests)))
        gaps = np.diff([due.at_s for due in requests])
        assert 0.225 <= gaps.min() < gaps.max() <= 0.275 and len(requests) == pytest.approx(200, abs=8)


@pytest.mark.parametrize("fit", range(8))
def test_the_largest_number_that_fits_is_found(fit: int) -> None:
    tried: list[int] = []

    def fits(robots: int) -> bool:
        tried.append(robots)
        return robots <= fit

    assert most_robots(fits, 1, 6) == min(fit, 6) and len(tried) <= 3
    assert all(most_robots(fits, 1, 6, guess) == min(fit, 6) for guess in range(9))


@pytest.mark.parametrize("count", range(1, 8))
def test_half_of_the_windows_decide_and_no_more_are_tried(count: int) -> None:
    for good in range(count + 1):
        for order in (range(count), reversed(range(count))):
            tried: list[int] = []

            def well(seed: int, good: int = good, tried: list[int] = tried) -> bool:
                tried.append(seed)
                return seed < good

            assert half(list(order), well) == (2 * good >= count)
            assert len(set(tried)) == len(tried) <= count
    assert half(range(2), lambda seed: seed == 0)  # one that was held up does not decide


@pytest.mark.parametrize(
    "word", ["four", "seats=2", "staggered=1", "lanes=five", "staggered=8,seats_by_load=yes"]
)
def test_a_setting_that_cannot_be_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        options_of(word)
    assert options_of("staggered=8,seats_by_load=true") == {"staggered": 8, "seats_by_load": True}


def test_the_speed_up_is_over_the_mean_of_either_alone() -> None:
    hz = {"local": 9.0, "ray, first": 10.0, "ray, second": 12.0, "ray, both": 22.0}
    cases = [{"case": name, "saturated": {"chunks_hz": rate_hz}} for name, rate_hz in hz.items()]
    assert fleet_replicas.speedup(cases) == 2.0
    cases[2]["saturated"] = {"chunks_hz": 0.0}
    with pytest.raises(RuntimeError, match="second replica"):
        fleet_replicas.speedup(cases)


def test_node_and_simulator_agree_in_the_published_run() -> None:
    document = result("fleet_agreement")
    assert [row["policy"] for row in document["rows"]] == list(BUILT_IN[FLEET_RULES])
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
