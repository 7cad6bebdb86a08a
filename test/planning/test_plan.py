"""Whole plans: memory to the byte where it is exact, rates, verdicts, fleets; and figures that there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from predicted.recorded import ours, published
from shared.peak import holding
from vla_accel_ros.engine.config import MOST_SEATS
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.dropping import dropping
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.precision import Small, feeds_fast
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.streaming import empty, fill
from vla_accel_ros.models.config import PI0, PI05, GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.pi.folding import fold_expert, fold_prefix
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import finished
from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.fleet import BUSY, plan_fleet
from vla_accel_ros.planning.memory import copies, kv_bytes
from vla_accel_ros.planning.plan import SPARE, make_plan
from vla_accel_ros.planning.sizes import MODELS, sizes_of
from vla_accel_ros.planning.verdict import SEATS, Wanted, judge
from vla_accel_ros.planning.work import Work

H200, ORIN = load("h200"), load("orin-agx-64")
VISION = VisionConfig(width=32, depth=2, mlp=48, heads=4, image_size=28, patch=14)
TINY = PiConfig(
    "pi0",
    VISION,
    GemmaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=1, head_dim=16),
    GemmaConfig(width=16, depth=2, mlp=48, heads=4, kv_heads=1, head_dim=16),
    60, 6, 6, 5, 16, ("one", "two"),
)  # fmt: skip


@pytest.mark.parametrize("precision", ["fp8", "int8", "int4"])
def test_copies_in_fewer_bits_are_those_that_the_stages_make(kind: str, precision: str) -> None:
    config = replace(TINY, kind=kind)
    model = Pi(config).set_precision(torch.bfloat16)
    small = Small(precision, model, fold_prefix(model), prefill_only=False)
    made = fold_expert(model, 3)
    assert (small.vision, small.prefix, small.expert(made.layers)) != (None, None, None)
    folded = 0
    if kind == "pi0":
        own = {p.data_ptr() for p in model.parameters()}
        matrices = [m for layer in made.layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        folded = sum(m.nbytes for m in matrices if m.data_ptr() not in own)
    assert copies(config, Work(precision=precision)) == small.nbytes + folded


def test_int8_copies_are_those_that_the_stages_make(kind: str) -> None:
    config = replace(TINY, kind=kind)
    model, made = Pi(config).set_precision(torch.bfloat16), Int8()
    made.vision(model)
    made.prefix(fold_prefix(model).layers, model.language_model)
    made.expert(model, fold_expert(model, 3).layers)
    exact, ours = (copies(config, Work(precision=precision)) for precision in ("exact", "w8a8"))
    assert ours - exact == made.nbytes
    mixed, int4 = (copies(config, Work(precision=precision)) for precision in ("w8a8-int4", "int4"))
    fewer, fast = Int8(), copies(config, Work(precision="w8a8", fast_memory=True))
    fewer.vision(model)
    fewer.prefix(fold_prefix(model).layers, model.language_model)
    assert mixed - int4 == fewer.nbytes == fast - exact


def test_int8_pays_on_an_orin_and_no_weights_alone_come_near(kind: str) -> None:
    times = {
        name: make_plan(MODELS[kind], ORIN, Work(precision=name)).latency[0]
        for name in ("exact", "int8", "w8a8")
    }
    assert times["w8a8"] < 0.85 * times["exact"] and times["w8a8"] < 0.9 * times["int8"]


def test_keys_and_values_are_those_of_the_pool() -> None:
    pool = KVPool(TINY.prefix, 3, TINY.max_tokens, torch.device("cpu"), torch.bfloat16)
    assert kv_bytes(TINY, 3) == pool.k.nbytes + pool.v.nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["exact", "fp8", "int8"])
def test_the_peak_of_the_allocator_is_within_5_percent_of_the_plan(precision: str) -> None:
    from vla_accel_ros.tools.bench.subjects import Ours, random_inputs, random_model

    device = torch.device("cuda")
    with holding(device) as held:  # not what other tests have left in the process
        model = random_model(PI0, device, dtype=torch.bfloat16)
        Ours(model, random_inputs(PI0, 2, 20, device), precision=precision)
    plan = make_plan(PI0, H200, Work(precision=precision), slots=2)
    assert plan.memory.allocated == pytest.approx(held.peak, rel=0.05), f"{held} {plan.memory}"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["w8a8", "w8a8-int4"])
def test_pi05_is_loaded_and_computed_within_6_gb_where_exact_weights_are_given_up(precision: str) -> None:
    device = torch.device("cuda")
    model = empty(Pi, PI05, torch.bfloat16)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    with holding(device) as held:
        zeros = ((name, torch.zeros(shape, dtype=torch.bfloat16)) for name, shape in shapes.items())
        fill(model, zeros, device, 1, "zeros", None, fused_parts(model), dropping(precision, device))
        pool = KVPool(PI05.prefix, 3, PI05.max_tokens, device, torch.bfloat16)
        stages = Stages(finished(model), pool, precision=precision)
        stages.build([2], [20], [10])
    capability = 10 * torch.cuda.get_device_capability()[0]
    gpu = replace(H200, fast_memory=feeds_fast(device), capability=capability)
    plan = make_plan(PI05, gpu, Work(precision=precision), slots=3, keep_exact=False)
    assert plan.memory.allocated == pytest.approx(held.peak, rel=0.05), f"{held} {plan.memory}"
    assert stages.pool is pool and held.peak + plan.memory.context < 6e9


def test_a_plan_promises_no_more_than_its_slow_end_allows() -> None:
    plan = make_plan(PI05, H200, Work())
    hz = plan.vision_hz
    assert hz * (plan.frame[2] + plan.action[2]) == pytest.approx(1 - SPARE)
    assert plan.action_hz(hz) == pytest.approx(hz)
    assert plan.action_hz(1e4) == 0.0
    assert plan.latency[1] < plan.latency[0] < plan.latency[2]


def test_rates_that_go_are_kept_and_others_are_late_with_what_mends_them() -> None:
    plan = make_plan(PI05, ORIN, Work())
    kept = judge(plan, Wanted(4.0, 4.0, max_age_s=0.5))
    assert not kept.late and kept.line.startswith("the plan keeps the rates")
    late = judge(plan, Wanted(8.0, 4.0))
    assert len(late.late) == 1 and late.line.startswith("late by the plan")
    for rate in (name for name in late.mends if "Hz" in name):
        hz = float(rate.split()[-2])
        assert not judge(plan, Wanted(hz, hz)).late


def test_the_options_that_are_named_mend_it_and_the_others_do_not() -> None:
    plan, wanted = make_plan(PI05, ORIN, Work()), Wanted(7.2, 7.2)
    verdict = judge(plan, wanted)
    tried = {f"precision: {name}": Work(precision=name) for name in ("int8", "int4", "w8a8", "w8a8-int4")}
    tried |= {"steps: 5": Work(steps=5), "1 instead of 2 views": Work(views=1)}
    mended = {name for name, work in tried.items() if not judge(make_plan(PI05, ORIN, work), wanted).late}
    assert verdict.late and mended and mended == tried.keys() & set(verdict.mends)


@pytest.mark.parametrize("held", [{"slots": 2000}, {"text": True}, {"keep_exact": False}, {"seats": 10}])
def test_options_are_tried_with_all_else_as_it_is(held: dict[str, Any]) -> None:
    """On a device whose memory is what another precision needs, or a byte less."""
    large, small = ("w8a8", "int8") if held.get("keep_exact", True) else ("int8", "w8a8")
    need = make_plan(PI05, H200, Work(precision=small), **held).memory.total / 1e9
    for memory_gb, mended in ((need + 1e-8, True), (need - 1e-8, False)):
        plan = make_plan(PI05, replace(H200, memory_gb=memory_gb), Work(precision=large), **held)
        assert not plan.fits
        assert (f"precision: {small}" in judge(plan, Wanted(0.1, 0.1)).mends) == mended


def test_staggered_chunks_are_named_only_where_an_engine_takes_them() -> None:
    assert range(2, MOST_SEATS + 1) == SEATS
    for steps, named in ((1, False), (10, True), (65, False)):
        plan = make_plan(PI05, H200, Work(steps=steps))
        rate = 0.9 / plan.chunk[0]
        assert (f"staggered: {steps}" in judge(plan, Wanted(30.0, rate)).mends) == named


def test_what_may_be_late_is_mended_at_the_slow_end() -> None:
    verdict = judge(make_plan(PI05, ORIN, Work()), Wanted(6.3, 6.3))
    assert not verdict.late and verdict.line.startswith("may be late by the plan")
    assert not judge(make_plan(PI05, ORIN, Work(steps=5)), Wanted(6.3, 6.3)).doubtful


def test_a_chunk_that_would_be_too_old_is_late_however_low_the_rates() -> None:
    verdict = judge(make_plan(PI05, ORIN, Work()), Wanted(1.0, 1.0, max_age_s=0.1))
    assert len(verdict.late) == 1 and "old when it arrives" in verdict.line


def test_what_does_not_fit_is_late() -> None:
    small = replace(H200, memory_gb=6.0)
    assert "do not fit into 6" in judge(make_plan(PI05, small, Work()), Wanted(1.0, 1.0)).line


def test_staggered_chunks_cost_their_share_of_a_step() -> None:
    alone, seated = make_plan(PI05, H200, Work()), make_plan(PI05, H200, Work(), seats=10)
    assert seated.chunk[0] < 0.4 * alone.chunk[0]
    assert seated.action == alone.action
    assert judge(alone, Wanted(30.0, 400.0)).late and not judge(seated, Wanted(30.0, 400.0)).late


def test_a_policy_of_tokens_acts_by_decodes() -> None:
    plan = make_plan(MODELS["openvla"], H200, Work(views=1))
    assert plan.action[0] == pytest.approx(6 * plan.stages["decode"].time.us / 1e6)


def test_a_fleet_is_promised_what_leaves_room_for_its_queue() -> None:
    fleet = plan_fleet(PI05, H200, Work(), 40, 3.0)
    assert fleet.robots == int(BUSY * fleet.chunks_hz / 3.0)
    assert plan_fleet(PI05, H200, Work(), 1, 3.0).together == 1
    assert fleet.curve[16][1] < 16 * fleet.curve[1][1]
    with pytest.raises(ValueError, match="0 robots"):
        plan_fleet(PI05, H200, Work(), 0, 3.0)


def test_a_fleet_holds_what_its_engine_holds_and_a_slot_for_every_robot() -> None:
    work = Work(precision="w8a8")
    for slots, keep_exact, text in ((5, True, False), (9, True, False), (5, False, False), (5, True, True)):
        fleet = plan_fleet(PI05, H200, work, 3, 0.01, slots, keep_exact, text)
        plan = make_plan(PI05, H200, work, slots + 3, fleet.together, keep_exact, text)
        assert fleet.memory_gb == plan.memory.total / 1e9
    small = replace(H200, memory_gb=fleet.memory_gb - 1e-6)
    slow = plan_fleet(PI05, small, work, 3, 0.01, text=True)
    assert slow.robots == 2 < int(BUSY * slow.chunks_hz / 0.01)
    assert plan_fleet(PI05, replace(H200, memory_gb=1.0), work, 3, 0.01).robots == 0


def test_sizes_are_found_by_name_and_by_folder() -> None:
    assert sizes_of("pi0") is PI0
    assert sizes_of("vla_accel_ros/sim/policy").kind == "pi05"
    with pytest.raises(ValueError, match=r"pi7 .*pi0"):
        sizes_of("pi7")


def test_engines_with_rows_in_8_bits_are_predicted_within_10_percent_or_say_why() -> None:
    rows = [row for row in ours() if row["source"] == "precision_w8a8.json"]
    whole = {row["precision"]: row["off_percent"] for row in rows if row["stage"] == "whole"}
    assert whole.keys() == {"w8a8"} and abs(whole["w8a8"]) < 10
    assert all(abs(row["off_percent"]) < 15 and row["met"] for row in rows)


def test_whole_engines_that_were_measured_are_predicted_within_10_percent() -> None:
    exact = [row for row in ours() if row["source"] == "engine.json"]
    assert len(exact) == 24
    assert all(abs(row["off_percent"]) <= 10 for row in exact)
    forwards = [row for row in ours() if row["model"] == "openvla"]
    assert forwards and all(abs(row["off_percent"]) <= 10 for row in forwards)


def test_the_published_rows_of_orin_and_thor_are_predicted_within_15_percent_but_for_one_that_says_why() -> (
    None
):
    rows = [row for row in published() if row["device"] in ("orin-agx-64", "thor")]
    missed = [row for row in rows if not row["met"]]
    assert len(rows) == 6 and [(row["precision"], row["views"]) for row in missed] == [("all-fp4", 3)]
    assert missed[0]["reason"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not readable JSON"),
        ("[1]", "holds a list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"vla_accel_ros": {"config": 5}}', "field vla_accel_ros: config must have exactly the fields"),
        ('{"vla_accel_ros": {"kind": []}}', "field vla_accel_ros: config must have exactly the fields"),
    ],
)
def test_a_config_without_sizes_is_refused_with_its_file(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError) as caught:
        sizes_of(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value) and said in str(caught.value)


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "jetson.md").read_text()


@pytest.mark.parametrize("mode", ["maxn", "50w", "30w", "15w"])
def test_the_table_of_power_modes_is_the_plans(mode: str) -> None:
    printed = []
    for precision in ("exact", "w8a8", "w8a8-int4"):
        plan = make_plan(MODELS["pi05"], load(f"orin-agx-64:{mode}"), Work(precision=precision))
        ms, least, most = (f"{1e3 * each:.0f}" for each in plan.latency)
        printed.append(f"{ms} ({least} to {most})")
    assert f"| `{mode}` | {' | '.join(printed)} |" in PAGE
