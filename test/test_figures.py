"""The figures that README.md and docs print are those of bench/results/, to the digits that are printed.

A row of a table, or a passage, is named by how it begins; every number in it must be claimed by a figure of
a file, or by None where it is of no file: a target, a size, a run that is said to have none. docs/pipeline.md
is made of its file as a whole (test/bench/test_bench_processes.py), and so are the tables of
docs/fleet_sim.md (test/bench/test_bench_fleet_sim.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vla_accel_ros.models.config import PI0

ROOT = Path(__file__).resolve().parents[1]
README, PERFORMANCE, STAGGERED = "README.md", "docs/performance.md", "docs/staggered.md"
FLEET_SIM, FLEET_DEMO, REPLICAS = "docs/fleet_sim.md", "docs/fleet_demo.md", "docs/fleet_replicas.md"
HIGH_RATE, TRACE, OFFLOAD = "docs/high_rate.md", "docs/trace.md", "docs/offload.md"
SOLVERS, CORUN = "docs/solvers.md", "docs/corun.md"
PLAN, PRECISION = "docs/plan.md", "docs/precision.md"
STREAMING, HORIZON, SCHEDULER = "docs/streaming.md", "docs/horizon.md", "docs/fleet_scheduler.md"
REPLICAS = "docs/fleet_replicas.md"
OFFLOADED = {"pi0": ((27, 3), (14, 3), (4, 1), (2, 1)), "cogagent": ((63, 3), (53, 3), (32, 3))}
"""Layers of a tower, and slots, that the page shows."""
Claim = tuple[str, str, list[float | None]]


@cache
def result(name: str) -> Any:
    """bench/results/NAME.json"""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The first row that has what is wanted."""
    return next(row for row in rows if all(row.get(name) == value for name, value in wanted.items()))


def printed(text: str) -> list[str]:
    """The numbers in it, not those that are part of a name."""
    return re.findall(r"(?<![\w.^])(?<!\d,)(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?![\w^]|\.\d)", text)


def demo() -> Iterator[Claim]:
    found, ring = result("demo"), result("demo_ring")
    tasks, answers, late = found["successes"], found["answers"], found["deadline_misses"]
    won = [number for task in ("reach", "place", "follow") for number in tasks[task]]
    yield PERFORMANCE, "| success: reach, place, follow |", [*won, answers["right"], answers["asked"]]
    loops = ("vision", "action", "language")
    rates = [found["rates_hz"][name] for name in loops]
    yield PERFORMANCE, "| loops: vision, action; turns", [*rates, *(late[name] for name in loops)]
    others = sorted(start["age_ms"]["p50"] for start in found["starts"][1:])
    ages = [found["age_ms"]["p50"], found["age_ms"]["p99"], *others]
    ages += [ring["age_ms"]["p50"], ring["age_ms"]["p99"]]
    yield PERFORMANCE, "| age from image stamp to published", ages
    jerk = found["jerk"]
    yield PERFORMANCE, "| jerk of the arm (RMS at 30 Hz)", [jerk["commanded"], jerk["measured"], None]
    yield PERFORMANCE, "| real-time factor of the simulator |", [found["real_time_factor"]["mean"]]
    share = [100 * found["cpu_share"][name] for name in ("inference", "sim_robot", "trajectory")]
    yield PERFORMANCE, "| share of one core: inference,", share
    tried = (sum(won[::2]), sum(won[1::2]))
    yield README, "| the demo on two cores", [*tried, *ages[:2]]
    slow = result("slow_demo")
    chunk, slowed = slow["chunk_ms"], slow["demo"]
    figures = [slow["slower"], chunk["slowed"], chunk["reference"], None, 1 / slow["share_of_a_core"]]
    figures += [slow["succeeded"], slowed["episodes"], slowed["rates_hz"]["vision"], slowed["age_ms"]["p50"]]
    yield PERFORMANCE, "On a machine that needs", figures


def control() -> Iterator[Claim]:
    holds, limits = result("hold"), result("limits")
    ms = [
        row["update"]["p50_ms"] for row in limits["rows"] if (row["kind"], row["horizon"]) == ("typical", 50)
    ]
    wild = max(
        row["update"]["p50_ms"] for row in limits["rows"] if (row["kind"], row["horizon"]) == ("wild", 50)
    )
    slowest = max(row["max_ms"] for row in holds["rows"])
    yield (
        PERFORMANCE,
        "`~/hold` is answered in",
        [slowest, holds["holds"], None, min(ms), max(ms), wild, None],
    )
    stages = result("stages_cpu")
    # observe, act, ask
    each = [stages["stages"][name][p] for name in stages["stages"] for p in ("p50_ms", "p99_ms")]
    figures = [stages["runs"], *each[:2], None, *each[2:]]
    yield PERFORMANCE, "The engine's calls alone,", figures
    for label, style in (
        ("whole chunk, stamped at its observation", "full chunk, stamped at observation"),
        ("one point per tick, due a step later", "single point per tick, due a step later"),
        ("past dropped, velocities given", "+ velocities"),
        ("past dropped, velocities, the sender blends", "+ sender blends over 200 ms"),
        ("this package, mode `async`", "our buffer, async"),
        ("this package, mode `blend` (the default)", "our buffer, blend"),
    ):
        rows = [one(result("handover")["styles"], style=style, from_desired=on) for on in (True, False)]
        named = [None] * label.endswith("sender blends")
        yield PERFORMANCE, f"| {label}", [*named, *(row["acceleration"] for row in rows)]
    both = ("our buffer, blend", "full chunk, stamped at observation")
    styles = [one(result("handover")["styles"], style=style, from_desired=True) for style in both]
    yield README, "| peak acceleration where", [row["acceleration"] for row in styles]


def noise() -> Iterator[Claim]:
    found = result("handover")["noise"]

    def rounded(figure: dict[str, Any], scale: float) -> list[float]:
        return [abs(scale * value) for value in (figure["median"], *figure["interval_95"])]

    plan, scenes = found["plan"], found["plan"]["seeds"][1] + 1
    situations = {(case["family"], case["condition"], case["delay"]) for case in found["cases"]}
    named = [plan["episodes"], scenes, len(situations), 4, 8, 4]
    yield PERFORMANCE, "Chunks that overlap may begin", [None, None, None, *named]
    for row in found["pooled"]:
        gain = row["success"]
        figures = [row["without"]["won"], row["with"]["won"], row["with"]["n"]]
        figures += [abs(100 * value) for value in (gain["difference"], *gain["interval_95"])]
        measures = [row[name] for name in ("seam", "jerk", "time_s") if row[name]["n"]]
        shares = [share for measure in measures for share in rounded(measure, 100)]
        yield PERFORMANCE, f"| {row['title']} |", [*figures, *shares]
    switched = one(found["cases"], title="blend", family="reach", condition="switched", delay=4)
    seams = [1e3 * switched[way]["seam"]["median"] for way in ("with", "without")]
    figures = [None, 4, *seams, None]
    for title in ("blend", "rtc"):
        case = one(found["cases"], title=title, family="follow")
        jerks = [case[way]["jerk"]["median"] for way in ("with", "without")]
        figures += [*jerks, *rounded(case["jerk"], 1)]
    yield PERFORMANCE, "- Success is no worse in any mode", figures


def guided_staggered() -> Iterator[Claim]:
    found = result("handover")["staggered"]
    steps, scenes = found["cases"][0]["delay"], found["cases"][0]["without"]["n"]
    date = [None] * 3
    yield STAGGERED, "Bundled policy in simulation time", [None, None, steps, scenes, scenes, *date, None]
    for label, title in (
        ("guided, both with fresh", "guided, not free (fresh)"),
        ("guided, both with `noise: coherent`", "guided, not free (coherent)"),
        ("free, with `noise: coherent`", "free and coherent, not fresh"),
    ):
        row = one(found["pooled"], title=title)
        figures = [row["without"]["won"], row["with"]["won"], row["with"]["n"]]
        for name in ("seam", "jerk"):
            figures += [abs(100 * v) for v in (row[name]["median"], *row[name]["interval_95"])]
        yield STAGGERED, f"| {label}", figures


def cameras() -> Iterator[Claim]:
    for label, transport in (("ring", "ring"), ("raw images", "raw"), ("JPEG", "compressed")):
        figures = []
        for width in (640, 1280):
            row = one(result("ingest")["rows"], transport=transport, width=width)
            figures += [row["hz"], row["cpu"], row["age_ms"]["p50"], row["age_ms"]["p99"]]
        yield PERFORMANCE, f"| {label} |", figures


def engine() -> Iterator[Claim]:
    def cases(kind: str) -> list[dict[str, Any]]:
        return [one(result("engine")["cases"], kind=kind, views=views) for views in (1, 2, 3)]

    def ours(kind: str) -> list[float]:
        return [case["ours"]["total"]["p50_ms"] for case in cases(kind)]

    def parts(case: dict[str, Any]) -> list[float]:
        return [case["ours"][name]["p50_ms"] for name in ("total", "encode", "prefill", "denoise")]

    pi0, pi05 = cases("pi0"), cases("pi05")
    graphs = [case["plain graph"]["p50_ms"] for case in pi0]
    above = [case["ours"]["total"]["p99_ms"] / case["ours"]["total"]["p50_ms"] for case in pi0]
    views = [None] * 3
    yield README, "| pi0, images to actions,", [*views, *ours("pi0"), min(above), max(above), *graphs]
    names = ("total", "encode", "prefill", "denoise")
    yield PERFORMANCE, "| roofline, pi0 (", [case["roofline_ms"][name] for case in pi0 for name in names]
    yield PERFORMANCE, "| **pi0** (encode", [figure for case in pi0 for figure in parts(case)]
    yield PERFORMANCE, "| **pi0.5** |", [figure for case in pi05 for figure in parts(case)]
    yield PERFORMANCE, "| plain torch in one CUDA graph, pi0 |", graphs
    yield PERFORMANCE, "| plain torch, eager, pi0", [case["plain eager"]["p50_ms"] for case in pi0]
    h100 = [
        one(result("engine_h100")["cases"], kind=kind, views=n) for kind in ("pi0", "pi05") for n in (1, 2, 3)
    ]
    yield PERFORMANCE, "| on an H100, pi0 |", [figure for case in h100[:3] for figure in parts(case)]
    yield PERFORMANCE, "| on an H100, pi0.5 |", [figure for case in h100[3:] for figure in parts(case)]
    in_a_graph = [case["plain graph"]["p50_ms"] for case in h100[:3]]
    yield PERFORMANCE, "| on an H100, plain torch in one CUDA graph, pi0 |", in_a_graph
    totals = [case["ours"]["total"]["p50_ms"] for case in h100[:3]]
    yield README, "- All on 2026-11-21 and 22,", [*totals, *[None] * 3]
    kernels = one(result("engine")["kernels"], kind="pi0", batch=1)["kernels"]
    chain = [kernels[name] for name in ("rotary_qkv", "attend", "project o", "gated_up", "project down")]
    for label, sizes, kernel in zip(
        ("`rotary_qkv` 51", "`attend` 408", "`project` o, 51", "`gated_up` 51", "`project` down, 51"),
        (2, 1, 2, 2, 2),
        chain,
        strict=True,
    ):
        yield (
            PERFORMANCE,
            f"| {label}",
            [*[None] * (sizes + 1), kernel["roofline_us"], *[None] * 4, kernel["us"]],
        )
    sums = [sum(kernel[name] for kernel in chain) for name in ("roofline_us", "us")]
    yield PERFORMANCE, "| the five, each in a chain", [None, sums[0], *[None] * 4, sums[1]]
    layer = pi0[1]["ours"]["denoise"]["p50_ms"] * 1000 / 180
    yield PERFORMANCE, "| a layer of all ten steps", [None, None, None, layer]
    ends = [
        sum(kernels[name][what] for name in ("embed_actions", "read_out")) for what in ("roofline_us", "us")
    ]
    yield PERFORMANCE, "| `embed_actions` and `read_out`, per", [None, ends[0], *[None] * 4, ends[1]]


def pipelines() -> Iterator[Claim]:
    part, text = (
        result("pipeline"),
        one(result("pipeline")["oxygen"]["rows"], steps=10, tokens=30, per_frame=1),
    )
    several = one(part["oxygen"]["rows"], steps=10, tokens=30, per_frame=3, arrivals="uniform")
    others = [one(part["oxygen"]["rows"], steps=steps, tokens=30, per_frame=1) for steps in (5, 20)]
    speed = [text["frames_s"], None, text["tokens_s"], text["over_isolated"]]
    yield README, "| pi0.5, text beside actions,", [None, None, *speed]
    many = [text["over_isolated"], text["frames_s"], text["tokens_s"], None, several["over_isolated"], None]
    many += [None, others[0]["over_isolated"], None, others[1]["over_isolated"]]
    yield PERFORMANCE, "| pi0.5, 2 views, N = 30", [None, None, *many]
    yield PERFORMANCE, "| >= 10 x plain torch", [text["over_plain"], text["frames_s"] / 2.43, None]
    beside = part["oxygen"]["beside"]
    lost = 100 * (1 - beside["with_text_hz"] / beside["alone_hz"])
    yield PERFORMANCE, "| text lowers the action rate", [None, None, lost, beside["tokens_s"]]
    rows = part["actionflow"]["rows"]
    short, long = (one(rows, system="pipelined", tokens=tokens, prompt=276) for tokens in (7, 32))
    rates = [short["frames_s"], short["over_sequential"], None, long["frames_s"], long["over_sequential"]]
    yield README, "| OpenVLA-7B's Llama,", [None, *rates]
    ratios = [short["over_sequential"], long["over_sequential"]]
    yield PERFORMANCE, "| OpenVLA-7B-sized, pipelined", [None] * 4 + ratios
    yield PERFORMANCE, "| >= 12 x HF eager", [None, short["over_hf"], *[None] * 4]
    forwards = part["actionflow"]["forwards"]
    packed = [one(forwards, tokens=tokens, prompt=276) for tokens in (7, 32)]
    figures = [
        packed[0]["packed_ms"],
        None,
        None,
        packed[0]["packed_by_16_ms"],
        None,
        packed[1]["packed_ms"],
        None,
    ]
    yield PERFORMANCE, "| one packed forward", [None, *figures]
    staggered = {(row["system"], row["steps"]): row for row in part["staggered"]["rows"]}
    ten, before, five = (staggered[key] for key in (("staggered", 10), ("sequential", 10), ("staggered", 5)))
    figures = [ten["gain"], ten["chunks_s"], before["chunks_s"], five["gain"], None]
    yield PERFORMANCE, "| staggered >= 5 x", [None, *figures]
    order = [staggered[system, steps] for steps in (10, 5) for system in ("sequential", "staggered")]
    gains = [[row["chunks_s"]] + ([row["gain"]] if row["system"] == "staggered" else []) for row in order]
    longer = ten["age_p50_ms"] / before["age_p50_ms"]
    yield STAGGERED, "`staggered: S` denoises up to S chunks at once,", [ten["gain"], longer]
    yield STAGGERED, "| finished chunks a second |", [figure for pair in gains for figure in pair]
    ages = [row[name] for row in order for name in ("age_p50_ms", "age_p99_ms")]
    yield STAGGERED, "| from a chunk's beginning to its end,", ages
    yield STAGGERED, "| energy of a chunk", [row["energy_mj"] for row in order]


def loading_and_precision() -> Iterator[Claim]:
    models = result("load_cuda")["models"]
    seconds = [models[name]["seconds"] for name in ("pi05", "openvla")]
    yield PERFORMANCE, "- Loading (", [None, seconds[0], None, seconds[1], None]
    random, bundled = result("precision_random")["cases"], result("precision_bundled")["cases"]
    for precision in ("exact", "fp8", "int8", "int4"):
        both = [one(random, kind=kind, precision=precision) for kind in ("pi0", "pi05")]
        times = [row[name]["p50_ms"] for name in ("encode", "prefill", "denoise", "total") for row in both]
        policy = one(bundled, precision=precision, dtype="float32")
        errors = [100 * row["to_float32"] for row in (*both, policy)]
        yield PERFORMANCE, f"| {precision} |", [*times, *errors, policy["max_mrad"]]
    rounded = [one(bundled, precision=name, dtype="bfloat16") for name in ("exact", "fp8", "int8", "int4")]
    errors = [100 * row["to_float32"] for row in rounded]
    yield PERFORMANCE, "The bundled policy in bfloat16,", errors


def offload() -> Iterator[Claim]:
    vision, views = PI0.vision, 2
    layer = 2 * (4 * vision.width**2 + 2 * vision.width * vision.mlp)
    gigabytes = 1e-9 * layer * vision.depth
    took_ms = one(result("engine")["cases"], kind="pi0", views=views)["ours"]["encode"]["p50_ms"]
    figures = [views * vision.tokens, gigabytes, took_ms, 1e3 * gigabytes / took_ms]
    yield OFFLOAD, f"| pi0's encoder, {views} views, H200 |", figures
    towers = {tower["tower"]: tower for tower in result("offload")["towers"]}
    all_of_it = one(towers["pi0"]["cases"], streamed=27, slots=3)
    shown = [all_of_it["p50_ms"], towers["pi0"]["resident_ms"], None]
    yield OFFLOAD, "**On a large GPU it costs time.**", shown
    for tower in result("offload")["towers"]:
        yield OFFLOAD, f"| {tower['tower']}, none |", [tower["resident_ms"]]
        for streamed, slots in OFFLOADED[tower["tower"]]:
            case = one(tower["cases"], streamed=streamed, slots=slots)
            named = f"{streamed} of {tower['layers']} layers, {slots} slot{'s' * (slots > 1)}"
            figures = [case["p50_ms"], case["predicted_ms"], 100 * case["slower"], abs(case["freed_mb"])]
            yield OFFLOAD, f"| {tower['tower']}, {named} |", figures


def streams() -> Iterator[Claim]:
    after = (("stream_text_groups", 0, ", 60 s"), ("stream_groups", 1, ""))
    fresh = (("stream_fresh", 0, ", joints at 1 kHz"), ("stream_fresh_pi05", 0, ""))
    for name, skipped, more in (("stream", 0, ""), *after, *fresh):
        for case in result(name)["cases"][skipped:]:
            named = f"| {case['kind']}, `{case['way']}`, `{case['setting']}`{more} |"
            first, chunks = case["first_chunk"], case["chunks"]
            figures = [case["vision"]["hz"], chunks["hz"], chunks["interval"]["p99_ms"], first["p50_ms"]]
            figures += [first["p99_ms"], case["tokens_hz"], case["saturated"]["against_first"]]
            yield STREAMING, named, figures


def streams_in_short() -> Iterator[Claim]:
    grouped, fresh = (result(name)["cases"][1] for name in ("stream_text_groups", "stream_fresh"))
    figures = [grouped["chunks"]["hz"], grouped["vision"]["hz"], grouped["tokens_hz"]]
    figures += [fresh["first_chunk"]["p99_ms"], fresh["chunks"]["hz"], fresh["tokens_hz"]]
    yield STREAMING, "On an H200 one lane makes", figures


def partitions() -> Iterator[Claim]:
    found = result("partition")
    for split in found["splits"]:
        alone, beside = split["alone"], split["beside"]
        figures = [alone[name]["p50_ms"] for name in ("frame", "step", "chunk")]
        figures += [beside[name][p] for name in ("frame", "step") for p in ("p50_ms", "p99_ms")]
        yield STREAMING, f"| pi0.5, `{split['asked']}` |", [*figures, beside["steps_hz"]]
    yield STREAMING, "A switch between two captured splits takes", [found["switch"]["switch_ms"], None]


def processes() -> Iterator[Claim]:
    for name, how in (
        ("processes", "within limits"),
        ("processes_limited", "limited"),
        ("processes_stream", "within limits"),
    ):
        (case,) = result(name)["cases"]
        times = case["image_to"]
        figures = [case["vision"]["hz"], case["chunks"]["hz"]]
        figures += [times[what]["p50_ms"] for what in ("observation", "prefix", "chunk")]
        figures += [times["command"][p] for p in ("p50_ms", "p99_ms")]
        figures += [case["commands"]["hz"], case["chunks"]["follow"]["p50_ms"]]
        yield STREAMING, f"| pi0, `{case['way']}`, through processes, {how} |", figures
    (fresh,) = result("processes")["cases"]
    taken = [fresh["image_to"]["command"][p] for p in ("p50_ms", "p99_ms")]
    yield STREAMING, "`staggering: fresh` takes", [*taken, None, None]


def real_nodes() -> Iterator[Claim]:
    found: list[float | None] = []
    for case in result("nodes_gpu")["cases"]:
        times, vision = case["image_to"], case["vision"]
        figures = [vision["hz"], vision["dropped"], vision["frames"], case["chunks"]["hz"]]
        figures += [times[what]["p50_ms"] for what in ("arrival", "observation", "prefix", "chunk")]
        command = [times["command"][p] for p in ("p50_ms", "p99_ms")]
        found += command
        named = f"| pi0, `{case['way']}`, real nodes, `{case['transport']}` |"
        yield STREAMING, named, [*figures, *command, case["commands"]["hz"]]
    yield STREAMING, "Through the real nodes over ROS 2,", found


def robots_on_a_gpu() -> Iterator[Claim]:
    found = result("fleet")
    for case in (*found["throughput"], *found["peers"]):
        yield SCHEDULER, f"| `{case['setting']}` |", [case["chunks_hz"], *case["request"].values()]
    for case in found["fleet"]:
        figures = [*case["image_to_chunk"].values(), 100 * case["late"], 100 * case["stall"]]
        figures.append(case["scheduler_step"]["p99_ms"])
        yield SCHEDULER, f"| `{case['setting']}`, trace {case['seed']} |", figures
    again = result("fleet_batches")
    yield SCHEDULER, "Later, in one run (", [again["throughput"][0]["chunks_hz"]]
    for case in again["fleet"]:
        figures = [*case["image_to_chunk"].values(), 100 * case["late"], 100 * case["stall"]]
        figures.append(case["scheduler_step"]["p99_ms"])
        yield SCHEDULER, f"| `{case['setting']}`, trace {case['seed']}, again |", figures
    (admitted,) = found["admission"]
    fit = [admitted["most"], found["seconds"]["window"], 16, admitted["expected"], -100 * admitted["error"]]
    yield SCHEDULER, "Robots that are in time:", [*fit, None]


def fleet_scheduler() -> Iterator[Claim]:
    (again,) = result("fleet_admission_h200")["admission"]
    first, second = again["seeds"]
    figures = [again["expected"], again["most"], 100 * again["error"], first["most"], second["most"]]
    figures += [first["expected"], second["expected"], 100 * abs(again["error_beside"]), None]
    yield SCHEDULER, "Expected before any robot was tried:", figures
    for found, named in zip(
        result("fleet_admission_batches")["admission"],
        ("`staggered=16,seats_by_load=true`", "`batches` of four frames"),
        strict=True,
    ):
        figures = [found["expected"], found["expected_beside"], found["most"], 100 * abs(found["error"])]
        yield SCHEDULER, f"| {named}, both |", figures
    (eleven,) = result("fleet_admission_h100")["admission"]
    figures = [eleven["expected"], eleven["expected_beside"], eleven["most"]]
    figures += [100 * abs(eleven[name]) for name in ("error", "error_beside")]
    yield SCHEDULER, "The forecast for robots not seen is", [*figures, None]
    windows = result("fleet_windows")["settings"]
    for found, named in zip(
        windows, ("`staggered=16,seats_by_load=true`", "`batches` of four frames"), strict=True
    ):
        shares = found["spread"][0]["within_tolerance"].values()
        yield SCHEDULER, f"| {named}, draws |", [100 * share for share in shares]
    first, spread = windows[0]["measured"], windows[0]["spread"][0]
    held_up = one(first, robots=34, seed=1)
    others = [row for found in windows for row in found["measured"] if row is not held_up]
    error = max(abs(row["model_p99_ms"] / row["measured_p99_ms"] - 1.0) for row in others)
    figures = [34, 1, held_up["measured_p99_ms"], held_up["model_p99_ms"], len(others), 100 * error]
    yield SCHEDULER, "- **One window was held up.**", [*figures, *_draws(spread)]
    admission = result("fleet_admission")
    rows, found = admission["simulated"], admission["measured"]
    for number, row in enumerate(rows, 1):
        asked = f"{row['hz']:g} | {row['within_ms']:g} | {100 * row['jitter']:g} | {row['policy']}"
        named = f"| {number}. {row['engine']}, {row['setting']} | {asked} |"
        figures = [row["predicted"], row["simulated"], abs(100 * row["error"]), row["least"], row["most"]]
        yield SCHEDULER, named, [*figures, 100 * row["unseen_error"], 100 * row["beside_error"]]
    errors = [row["error"] for row in rows]
    close = sum(abs(error) <= 0.05 for error in errors)
    figures = [len(errors), None, 100 * max(map(abs, errors)), sum(error <= 0.0 for error in errors)]
    for of in ("unseen_error", "beside_error"):
        figures += [sum(row[of] <= 0.05 for row in rows), None][: 2 if of == "unseen_error" else 1]
    yield SCHEDULER, f"{close} of", figures
    took = [max(row[name] for row in rows) for name in ("predicted_in_cpu_ms", "judged_in_cpu_ms")]
    yield SCHEDULER, "A forecast takes", [*took, None]
    draws = found["single_draws"]
    figures = [found["measured"], found["predicted"], abs(100 * found["predicted_error"]), None]
    figures += [draws["least"], draws["most"], draws["median"]]
    figures += [found["same_phases"], abs(100 * found["same_phases_error"])]
    yield SCHEDULER, "**Measured**: the H200 above served", figures
    for at, row in enumerate(found["windows"]):
        of = " (9 s)" if at >= len(found["windows"]) - 2 else ""
        figures = [row[f"{who}_{p}_ms"] for who in ("measured", "model") for p in ("p50", "p99")]
        yield SCHEDULER, f"| {row['robots']} robots, seed {row['seed']}{of} |", figures
    decisions = result("fleet_decision")["steps"]
    slowest = max(row["cpu_ms"]["p99"] for row in decisions)
    yield SCHEDULER, "A step of the scheduler with", [1000, slowest, None]
    for row in decisions:
        figures = [row["cpu_ms"]["p50"], row["cpu_ms"]["p99"]]
        yield SCHEDULER, f"| {row['fleet']}: `{row['policy']}` |", figures
    names = {"none": "well", "slow": "three times as slow", "stalling": "stalls"}
    for row in result("fleet_hedging")["simulated"]:
        figures = [row[name] for name in ("p50_ms", "p99_ms", "p99.9_ms", "most_ms")]
        named = f"| {names[row['fault']]}, {'hedged' if row['hedge'] else 'not hedged'} |"
        yield SCHEDULER, named, [*figures, 100 * row["hedged"], 100 * row["wasted"]]


def _draws(spread: dict[str, Any]) -> list[float | None]:
    return [spread["least"], spread["most"], spread["median"], spread["expected"]]


def replicas_of_ray() -> Iterator[Claim]:
    found = result("fleet_replicas")
    assert found["speedup"] >= 1.9 and found["gpus"] == 2
    for case in found["cases"]:
        saturated, fleet = case["saturated"], case["fleet"]
        figures = [
            saturated["chunks_hz"],
            *saturated["image_to_chunk"].values(),
            saturated["cpu_ms_per_chunk"],
        ]
        figures += [
            fleet["robots"],
            *fleet["image_to_chunk"].values(),
            100 * fleet["late"],
            100 * fleet["stall"],
        ]
        yield REPLICAS, f"| `{case['case']}` |", figures
    yield REPLICAS, "Two replicas through Ray make", [found["speedup"], 1.9, None, None]
    yield REPLICAS, "Two replicas on two H100s make", [found["speedup"]]
    fleets = {case["case"]: case["fleet"] for case in found["cases"]}
    shared = fleets["ray, both"]["by_replica"]
    figures = [40, *shared.values(), fleets["ray, both"]["requests"]]
    yield REPLICAS, "80 robots on two engines", figures
    hz = {case["case"]: case["saturated"]["chunks_hz"] for case in found["cases"]}
    slower = 100 * (1.0 - (hz["ray, first"] + hz["ray, second"]) / 2 / hz["local"])
    waits_ms = [fleets[case]["image_to_chunk"]["p50_ms"] for case in ("ray, first", "ray, second", "local")]
    longer_ms = sum(waits_ms[:2]) / 2 - waits_ms[2]
    megabytes = 1e-6 * 3 * found["views"] * found["size"][0] * found["size"][1]
    network_ms = sum(found["network_ms"]) / 2
    cores = 1e-3 * hz["ray, both"] * found["cases"][-1]["saturated"]["cpu_ms_per_chunk"]
    figures = [slower, longer_ms, megabytes, network_ms, hz["ray, both"], cores]
    yield REPLICAS, "An actor makes", figures


def robots_on_a_network() -> Iterator[Claim]:
    found = result("fleet_network")
    assert not any(
        row.get(bad)
        for row in found["rows"]
        for bad in ("chunks_wrong", "limits_broken", "commands_rejected")
    )
    for row in found["rows"]:
        link = found["links"][row["link"]]
        about = [1e3 * link["delay_s"], 100 * link["loss"], 1e-6 * link["rate_bit_s"]]
        moves = row["moves"]
        figures = [row["took_ms"]["p50"], row["took_ms"]["p99"]] if moves else []
        figures += [row["rounds"]] if moves else []
        figures += [100 * row[one] for one in ("without_chunk", "asked_again", "stood")] if moves else []
        of_link = f"{about[0]:g} ms, {about[1]:g} % lost, {about[2]:g} Mbit/s"
        yield REPLICAS, f"| `{row['link']}`: {of_link} | {row['images']} |", figures


def chunks_together() -> Iterator[Claim]:
    cases = result("chunks_at_once")["cases"]
    for chunks in sorted({case["chunks"] for case in cases}):
        both = [one(cases, kind=kind, chunks=chunks) for kind in ("pi0", "pi05")]
        figures = [figure for case in both for figure in (case["p50_ms"], case["against_one"])]
        yield STAGGERED, f"| {chunks} |", figures


def timeline() -> Iterator[Claim]:
    found = result("timeline")
    hooks, named = found["hooks"], ("callback of an image", "micro-batch")
    figures = [found["events"]["span"]["p50"], found["threads"]["cpu_us"], *(hooks[n]["p50"] for n in named)]
    yield TRACE, "An event takes", [*figures, found["memory_mb"], found["page_ms"]["p50"]]
    yield TRACE, "Every process of a robot", [found["kept"], None]


def interpreter() -> Iterator[Claim]:
    names = ("stages_per_s", "longer_p50_ms", "longer_p99_ms", "longer_max_ms")
    for row in result("interpreter")["rows"]:
        yield PERFORMANCE, f"| {row['case']} |", [row[name] for name in names]


def force() -> Iterator[Claim]:
    names = ("command_p50_ms", "command_p99_ms", "command_max_ms", "commands_late_percent")
    for row in result("force")["sources"]:
        figures = [row[name] for name in (*names, "reaction_p50_ms", "reaction_p99_ms")]
        yield PERFORMANCE, f"| {row['source']}, {row['force_priority']} |", figures


def own_path() -> Iterator[Claim]:
    yield from _own_path("engine_path", "own path")
    yield from _own_path("engine_path_h100", "on an H100")
    cases = result("engine_path_h100")["cases"]
    (two,) = (case for case in cases if (case["kind"], case["views"]) == ("pi0", 2))
    calm = sum(case["engine"]["p99_over_p50"] <= 1.03 for case in cases)
    figures = [2, two["difference_ms"], None, calm, len(cases), *[None] * 5]  # the rest is a trial
    yield PERFORMANCE, "- There pi0 at", figures
    captured = result("engine_path_smolvla")["cases"]
    for case in captured:
        begins = f"| SmolVLA, {case['views']} view{'s' * (case['views'] > 1)}, captured |"
        both = case["engine"], case["plain"]
        yield PERFORMANCE, begins, [times[name] for times in both for name in ("p50_ms", "p99_ms")]
    (two,) = (case for case in captured if case["views"] == 2)
    yield README, "| SmolVLA in captured stages |", [two["engine"]["p50_ms"], two["plain"]["p50_ms"]]


def _own_path(file: str, named: str) -> Iterator[Claim]:
    names = {"pi0": "pi0", "pi05": "pi0.5", "smolvla": "SmolVLA"}
    for case in result(file)["cases"]:
        begins = f"| {names[case['kind']]}, {case['views']} view{'s' * (case['views'] > 1)}, {named} |"
        taken, graphs = case["engine"], case["stages"]["p50_ms"]
        figures = [taken["p50_ms"], taken["p99_ms"], taken["p99_over_p50"], graphs, case["difference_ms"]]
        yield PERFORMANCE, begins, [*figures, *(case[name]["p50_ms"] for name in ("observe", "upload"))]


def high_rate() -> Iterator[Claim]:
    found, parts = result("chunk_port"), ("write", "read", "update", "stream", "sum")
    for row in found["parts"]:
        figures = [row[part]["p50_ms"] for part in parts] + [row["sum"]["p99_ms"]]
        yield HIGH_RATE, f"| {row['kind']}, {row['joints']} joints |", figures
    for row in found["whole"]:
        names = ("write_to_follow_p50", "write_to_follow_p99", "interval_p50", "interval_p99", "interval_max")
        figures = [row[name] for name in ("chunks_hz", "followed_hz", "commands_hz")]
        figures += [*(row[f"{name}_ms"] for name in names), row["cpu_percent"]]
        yield HIGH_RATE, f"| whole, {row['joints']} joints |", figures
    written = found["whole"][0]
    shown = [written["chunks_hz"], written["write_to_follow_p50_ms"]]
    yield HIGH_RATE, "A model in captured stages,", shown
    loads = [found[f"load_{when}"][0] for when in ("before", "after")]
    date = [float(part) for part in found["date"][:10].split("-")]
    yield HIGH_RATE, "Load", [*loads, found["machine"]["cores"], *date]


MEASURES = ("overall", "at_place")


def horizons() -> Iterator[Claim]:
    found = result("horizon")
    signals, front = found["signals"], found["front"]
    episodes = sum(sum(played.values()) for played in signals["episodes"].values())
    named = [None, signals["denoise_steps"], signals["chunks"], episodes, None]
    yield HORIZON, "`python bench/horizon.py --parts signals`", named
    rows = signals["correlations"]
    for name in dict.fromkeys(row["signal"] for row in rows):
        told = [one(rows, signal=name, error=error)[of] for error in ("later", "mean") for of in MEASURES]
        figures = [
            abs(v) for rho in told if rho["rho"] is not None for v in (rho["rho"], *rho["interval_95"])
        ]
        yield HORIZON, f"| {name} |", figures
    yield HORIZON, "The ratio less 1", [signals["quantiles"]["update_ratio"][4], None, None]
    for row in front["rows"]:
        figures = [row["won"], row["n"], *(100 * bound for bound in row["interval_95"])]
        figures += [row["actions"], row["chunks_per_s"]]
        for name in ("time_s", "jerk"):
            figures += [row[name]["median"], *row[name]["interval_95"]]
        yield HORIZON, f"| {row['condition']}, `{row['horizon']}` |", figures


def solvers() -> Iterator[Claim]:
    found = result("solvers")
    errors, drafts = found["errors"], found["drafts"]
    for row in errors["ways"]:
        error, default = row["error"], row["to_default"]
        figures = [None, error["median"], error["p95"], error["most"], default["median"], default["p95"]]
        yield SOLVERS, f"| {row['way']} |", figures + ([row["ms"]["p50"]] if row["ms"] else [])
    known, samples = errors["reference_to_half"], errors["two_samples"]
    figures = [known["median"], None, known["p95"], samples["median"], None, samples["p95"]]
    yield SOLVERS, "The reference is", figures
    for row in found["success"]["rows"]:
        each = row["conditions"].values()
        figures = [number for one in each for number in (one["won"], one["n"])]
        figures += [100 * bound for bound in row["interval_95"]]
        for name in ("time_s", "jerk"):
            figures += [row[name]["median"], *row[name]["interval_95"]]
        yield SOLVERS, f"| episodes by {row['way']} |", figures
    for row in drafts["rows"]:
        figures = [row["accepted_steps"], 100 * row["accepted_whole"], row["forwards"]]
        yield SOLVERS, f"| {row['tolerance']:g} |", [*figures, row["error"]["median"], row["error"]["p95"]]


def fleet() -> Iterator[Claim]:
    found = result("fleet_sim")
    tops = [(row["workload"], row["load"]) for row in found["table_2"] if row["against"] == "fifo"]

    def changes(policy: str, metric: str) -> list[float]:
        rows = (
            one(found["open"], workload=name, load=load, horizon="static", policy=policy)
            for name, load in tops
        )
        return [row["against_fifo"][metric]["mean"] for row in rows]

    best, bound = changes("aged_remaining", "avg"), changes("clairvoyant", "avg")
    tail = changes("clairvoyant", "p95")
    assert (
        max(changes("aged_remaining", "p95")) < 0.0
        and max(best) < 0.0
        and sum(more > 0 for more in tail) == 4
    )
    figures = [*map(abs, best), -bound[3], tail[3], -max(bound), -min(bound), 0.8]
    yield FLEET_SIM, "`aged_remaining` lowers the average by", figures


def fleet_demo() -> Iterator[Claim]:
    found = result("fleet_demo")
    robots, time = found["robots"].values(), found["simulated_time"]
    assert all(robot["succeeded"] for robot in robots) and found["machine"]["cores"] == 2
    played = [sum(robot[what] for robot in robots) for what in ("tasks_done", "tasks", "scenes")]
    again = [max(fault["moving_again_s"].values()) for fault in found["faults"]]
    stalled_s = max(robot["stalled_s"] for robot in robots)
    figures = [*played, time["seconds"], time["real_seconds"], time["factor"]["mean"], stalled_s, *again]
    yield FLEET_DEMO, "| three robots, two cores |", figures


def counted_memory() -> Iterator[Claim]:
    for row in result("memory")["rows"]:
        model = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA"}[row["model"]]
        kept = "kept" if row["keep_exact"] else "given up"
        names = ("final_bytes", "peak_bytes", "planned_bytes", "total_computed_bytes")
        *held, total = (row[name] / 1e9 for name in names)
        figures = [*held, abs(row["off_percent"]), row["beyond_in_layers"], total]
        yield PLAN, f"| memory: {model}, {row['precision']}, {kept} |", figures


def plans() -> Iterator[Claim]:
    """All rows of docs/plan.md, in the order of the file."""
    found, others = result("plan"), 0
    names = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA", "smolvla": "SmolVLA"}
    bits = {"exact": "bfloat16", "all-int8": "int8", "all-fp8": "fp8", "all-fp4": "NVFP4"}
    boards = {"orin-agx-64": "Orin AGX", "thor": "Thor", "rtx-4090": "RTX 4090", "rtx-5090": "RTX 5090"}
    cases: dict[str, list[float | None]] = {}
    for row in found["rows"]:
        model, dtype = names[row["model"]], bits.get(row["precision"], row["precision"])
        views, source = f"{row['views']} view{'s' * (row['views'] > 1)}", row["source"]
        figures = [row["measured_ms"], row["predicted_ms"]]
        why = [None] * len(printed(row["reason"]))
        if source == "engine.json":
            end = [abs(row["off_percent"])] * (row["stage"] == "whole")
            cases.setdefault(f"| {model}, {views} |", []).extend([*figures, *end])
            continue
        if source.startswith("published"):
            by = source.removeprefix("published: ")
            begins = f"| {boards[row['device']]}, {model}, {dtype}, {views}, {by} |"
            figures += [row["low_ms"], row["high_ms"]]
        else:
            others += 1
            by = source.removesuffix(".json").split(",")[0].split("/")[-1]
            stage = f"{row['stage']} of {row['batch']}"
            begins = f"| {model} on {row['device'].upper()}, {dtype}, {stage}, {by}, row {others} |"
        cases[begins] = [*figures, abs(row["off_percent"]), *why]
    for begins, claimed in cases.items():
        yield PLAN, begins, claimed
    yield PLAN, "All together", [found[name] for name in ("met", "of", "whole_met", "whole_of")]


def plans_of_gpus() -> Iterator[Claim]:
    """Rows of docs/plan.md that were measured beside two plans, one from micro-benchmarks of the machine."""
    names = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA", "smolvla": "SmolVLA"}
    for path in sorted((ROOT / "bench" / "results").glob("plan_*.json")):
        found, cases = result(path.stem), dict[str, list[float | None]]()
        reasons: dict[str, list[str]] = {}
        gpu = path.stem.removeprefix("plan_").upper()
        for row in sorted(found["rows"], key=lambda row: row["device"] != "measured"):
            views = f"{row['views']} view{'s' * (row['views'] > 1)}"
            begins = f"| on {gpu}: {names[row['model']]}, {views}, {row['precision']}, {row['stage']} |"
            first = [] if begins in cases else [row["measured_ms"]]
            cases.setdefault(begins, []).extend([*first, row["predicted_ms"], abs(row["off_percent"])])
            if not row["met"] and row["reason"] not in reasons.setdefault(begins, []):
                reasons[begins].append(row["reason"])
        for begins, figures in cases.items():
            said = [None for why in reasons.get(begins, []) for _ in printed(why)]
            yield PLAN, begins, [*figures, *said]
    found = result("plan_h200")
    whole = [found["whole_met"], found["whole_of"]]
    offs = [abs(row["off_percent"]) for row in found["memory"]]
    yield PLAN, "That run met its aim in", [found["met"], found["of"], *whole, None, None, *offs]
    yield from plan_of_an_h100()


def plan_of_an_h100() -> Iterator[Claim]:
    """Sentences of docs/plan.md: how far off the two plans were at most."""
    found = result("plan_h100")

    def off(device: str, stage: str, views: int = 0, sign: int = 0) -> float:
        rows = (row for row in found["rows"] if row["device"] == device and row["stage"] == stage)
        taken = (row["off_percent"] for row in rows if views in (0, row["views"]))
        return max(sign * percent if sign else abs(percent) for percent in taken)

    figures = [1, 3, None, found["whole_met"], found["whole_of"], None]
    figures += [off(device, "whole") for device in ("measured", "h100")]
    figures += [found["met"], found["of"], off("h100", "encode", 1, 1), off("h100", "encode", 3, -1)]
    largest = max(abs(row["off_percent"]) for row in found["memory"])
    figures += [off("measured", "prefill", 3), largest, len(found["memory"]), None]
    yield PLAN, "Of whole engines, pi0 and pi0.5 at", figures


def eight_bits() -> Iterator[Claim]:
    """All rows of docs/precision.md that have figures."""
    found = result("w8a8")
    for row in found["errors"]["rows"]:
        figures = [row["rms_mrad"], row["max_mrad"], 100 * row["over_moved"]]
        yield PRECISION, f"| actions, {row['precision']} |", figures
    on_gpu = found["errors_gpu"]["rows"]
    for row in on_gpu[1:]:
        error = row["to_exact"]
        figures = [error["rms_mrad"], error["max_mrad"], 100 * error["over_moved"]]
        yield PRECISION, f"| kernels, {row['precision']} |", figures
    least = [min(row["to_exact"][name] for row in on_gpu) for name in ("cosine", "worst")]
    yield PRECISION, "On an H200 in bfloat16 (", [found["errors_gpu"]["frames"], *least]
    products = found["errors"]["product_errors"]
    assert not products["stay_exact"]
    about = [found["errors"]["frames"], None, 100 * products["median"], 100 * products["largest"]]
    yield PRECISION, "The bundled policy's actions,", [*about, found["errors"]["moved_rms_mrad"]]
    in_fp8 = found["errors"]["product_errors_fp8"]
    assert not in_fp8["stay_exact"]
    yield PRECISION, "Of its products in fp8:", [100 * in_fp8["median"], 100 * in_fp8["largest"]]
    names = {"pi0": "pi0", "pi05": "pi0.5"}
    for row in found["outliers"]["rows"]:
        parts = [row[name] for name in ("tokens", "keys", "values", "actions")]
        figures = [number for part in parts for number in (part["cosine"], 100 * part["error"])]
        yield PRECISION, f"| {names[row['kind']]}, {row['precision']} |", figures
    for row in found["success"]["rows"]:
        each = row["conditions"].values()
        low, high = row["against_default"]["interval_95"]
        gain = [100 * abs(value) for value in (row["against_default"]["difference"], low, high)]
        figures = [*(one["won"] for one in each), row["won"], row["n"]]
        figures += [*(100 * bound for bound in row["interval_95"]), *gain]
        yield (
            PRECISION,
            f"| episodes, {row['way'].removeprefix('euler 10').strip(', ') or 'exact'} |",
            figures,
        )
    for row in result("precision_w8a8")["cases"]:
        times = [row[name]["p50_ms"] for name in ("encode", "prefill", "denoise", "total")]
        yield PRECISION, f"| measured, {row['precision']} |", [*times, 100 * row["to_float32"]]
    whole = {row["precision"]: row["total"]["p50_ms"] for row in result("precision_w8a8")["cases"]}
    moved = one(found["errors"]["rows"], precision="w8a8, calibrated")["over_moved"]
    played = one(found["success"]["rows"], way="euler 10, w8a8, calibrated")
    shown = [whole["w8a8"], whole["exact"], 100 * moved, played["won"], played["n"]]
    yield PRECISION, "- **Speed.**", shown
    boards = {"orin-agx-64": "Orin AGX", "h200": "H200"}
    for row in found["predicted"]["rows"]:
        if row["kind"] == "pi05":
            figures = [row[name] for name in ("encode", "prefill", "denoise", "whole", "low", "high")]
            yield PRECISION, f"| {boards[row['device']]}, {row['precision']} |", figures


def frontier() -> Iterator[Claim]:
    """What an Orin would take, in docs/plan.md."""
    found = result("w8a8")["frontier"]
    for row in found["rows"]:
        views = f"{row['views']} view{'s' * (row['views'] > 1)}"
        asked = f"{row['evaluations']} evaluations, prompt of {row['prompt']}"
        begins = f"| option: {row['precision']}, {views}, {asked} |"
        times = [row[name] for name in ("encode", "prefill", "denoise", "whole", "low", "high")]
        yield PLAN, begins, [*times, *row["bound"].values()]
    names = ("published_as", "w8a8", "w8a8-int4", "w8a8, 5", "w8a8-int4, 5")
    for row in found["rates"]:
        yield PLAN, f"| rate: {row['tops']:g} TOPS |", [row[name] for name in names]


def corun() -> Iterator[Claim]:
    measured, simulated = result("corun"), result("corun_simulated")
    durations = measured["durations"]
    alone = [durations["encode_ms"], durations["prefill_ms"], 4, durations["decode_ms"]["4"]]
    yield CORUN, "Measured on an H200 (`bench/results/corun.json`):", alone
    for both in durations["beside"]:
        named = f"{both['split']} multiprocessors" if both["split"] else "two streams"
        figures = []
        for stage in ("encode", "prefill"):
            front_ms, step_ms = both[f"{stage}_ms"], both[f"decode_in_{stage}_ms"]
            lost_ms = front_ms - durations[f"{stage}_ms"]
            figures += [front_ms, step_ms, lost_ms * step_ms / front_ms]
        yield CORUN, f"| {named} |", figures
    names = ("average_s", "p99_s", "max_s", "requests_s", "lost", "utilisation", "queue_s")
    for case in simulated["cases"]:
        load, policy = case["load"], f"`{case['policy']}`"
        figures = [case[name] for name in names]
        if case["utilisation"] < 1:
            figures.append(case["queue_mg1_s"])
        if load is None:
            figures = [case[name] for name in ("requests_s", "average_s", "max_s")]
            yield CORUN, f"| all at once: {policy} |", figures
        elif policy == "`fifo`":
            if load <= 0.8:
                yield CORUN, f"| whole requests, {load} |", figures
        else:
            yield CORUN, f"| {load}: {policy} |", figures
    for row in simulated["against_best"]:
        if row["load"] is not None:
            figures = [abs(100 * row["average_below"]), abs(100 * row["max_below"]), row["requests_over"]]
            yield CORUN, f"| {row['load']}: `{row['policy']}` below |", figures
    for case in measured["cases"]:
        figures = [case["average_s"], case["max_s"], case["requests_s"], 1e3 * case["service_s"]]
        yield CORUN, f"| measured: `{case['policy']}` |", figures
    again = result("corun_measured")
    for case in again["cases"]:
        figures = [case[name] for name in ("average_s", "p99_s", "max_s", "requests_s", "utilisation")]
        many = f"{case['requests']} at once" if case["load"] is None else f"{case['requests']} requests"
        yield CORUN, f"| {many}: `{case['policy']}` |", figures
    gains = []
    for row in again["against_best"]:
        if row["policy"] == "planned":
            over = 100 * abs(row["requests_over"] - 1)
            gains += [100 * row["average_below"], 100 * row["max_below"], over]
    yield CORUN, "Against `two_streams`, the best of the others,", [*gains, *[None] * 6]


PARTS = (
    corun,
    counted_memory,
    plans,
    plans_of_gpus,
    eight_bits,
    frontier,
    fleet,
    fleet_demo,
    interpreter,
    force,
    demo,
    high_rate,
    control,
    noise,
    guided_staggered,
    cameras,
    engine,
    own_path,
    pipelines,
    loading_and_precision,
    offload,
    streams,
    streams_in_short,
    partitions,
    processes,
    real_nodes,
    robots_on_a_gpu,
    fleet_scheduler,
    replicas_of_ray,
    robots_on_a_network,
    chunks_together,
    timeline,
    horizons,
    solvers,
)
CLAIMS = [claim for part in PARTS for claim in part()]


def passage(document: str, begins: str) -> str:
    """A row of a table, or a paragraph, after how it begins; links are their texts."""
    text = (ROOT / document).read_text()
    at = [found.end() for found in re.finditer(f"^{re.escape(begins)}", text, re.MULTILINE)]
    assert len(at) == 1, f"{document} has {len(at)} passages that begin with '{begins}'"
    end = text.find("\n" if begins.startswith("|") else "\n\n", at[0])
    return re.sub(r"\]\([^)]*\)", "]", text[at[0] : end])


def agrees(shown: str, value: float) -> bool:
    """Whether a number is shown as it is rounded to the shown digits."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown.replace(",", "")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_every_printed_figure_is_the_measured_one(claim: Claim) -> None:
    document, begins, figures = claim
    numbers = printed(passage(document, begins))
    assert len(numbers) == len(figures), f"{numbers} are not {figures}"
    wrong = [(a, b) for a, b in zip(numbers, figures) if b is not None and not agrees(a, b)]
    assert not wrong, f"printed, measured: {wrong}"


def test_every_row_of_figures_in_readme_is_claimed() -> None:
    """A row that is added must be claimed, too."""
    table = (ROOT / README).read_text().partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and printed(line.partition(" |")[2])]
    begun = tuple(begins for document, begins, _ in CLAIMS if document == README)
    assert rows and not [row for row in rows if not row.startswith(begun)]


def test_numbers_are_found_and_compared() -> None:
    text = "x p99 1,279 to 3.28 (.31/1.47) of pi0.5, 7B and 640x480; 9 rad/s^2, fp8, 2024-row 5."
    assert printed(text) == ["1,279", "3.28", ".31", "1.47", "9", "2024", "5"]
    assert agrees("7.4", 7.3522) and agrees("8,810", 8809.7) and agrees("99", 98.5)
    assert not agrees("7.3", 7.3522) and not agrees("8,810", 8811.0)
