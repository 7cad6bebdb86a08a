"""Figures of one engine on a GPU: stages, its own path, pipelines, loading, offload, solvers, predictions of
these, streams, partitions, processes and nodes beside it, and of agents."""

from __future__ import annotations

from collections.abc import Iterator

from claims import (
    CORUN,
    OFFLOAD,
    PERFORMANCE,
    PLAN,
    PRECISION,
    README,
    STAGGERED,
    STREAMING,
    TUNING,
    Claim,
    one,
    percent,
    result,
)


def engine() -> Iterator[Claim]:
    cases = [one(result("engine")["cases"], kind="pi0", views=views) for views in (1, 2, 3)]
    ours = [case["ours"]["total"]["p50_ms"] for case in cases]
    graphs = [case["plain graph"]["p50_ms"] for case in cases]
    above = [case["ours"]["total"]["p99_ms"] / case["ours"]["total"]["p50_ms"] for case in cases]
    yield PERFORMANCE, "| pi0, images to actions,", [*[None] * 3, *ours, min(above), max(above), *graphs]


def pipelines() -> Iterator[Claim]:
    part, quick = result("pipeline"), result("pipeline_quick")
    newest = one(quick["oxygen"]["rows"], per_frame=1)
    speed = [newest["frames_s"], None, newest["tokens_s"], newest["over_isolated"]]
    yield PERFORMANCE, "| pi0.5, text beside actions,", [None, None, *speed]
    rows = quick["actionflow"]["rows"]
    short, long = (one(rows, system="pipelined", tokens=tokens, prompt=276) for tokens in (7, 32))
    rates = [short["frames_s"], short["over_sequential"], None, long["frames_s"], long["over_sequential"]]
    yield PERFORMANCE, "| OpenVLA-7B's Llama,", [None, *rates]
    staggered = {(row["system"], row["steps"]): row for row in part["staggered"]["rows"]}
    order = [staggered[system, steps] for steps in (10, 5) for system in ("sequential", "staggered")]
    gains = [[row["chunks_s"]] + ([row["gain"]] if row["system"] == "staggered" else []) for row in order]
    yield STAGGERED, "| finished chunks a second |", [figure for pair in gains for figure in pair]
    ages = [row[name] for row in order for name in ("age_p50_ms", "age_p99_ms")]
    yield STAGGERED, "| from a chunk's beginning to its end,", ages
    yield STAGGERED, "| energy of a chunk", [row["energy_mj"] for row in order]


def loading() -> Iterator[Claim]:
    models = result("load_cuda")["models"]
    seconds = [models[name]["seconds"] for name in ("pi05", "openvla")]
    yield PERFORMANCE, "- Loading (", [None, seconds[0], None, seconds[1], None]


def offload() -> Iterator[Claim]:
    agents, robot = (one(result("offload_h100")["towers"], tower=tower) for tower in ("cogagent", "pi0"))
    half, whole = one(agents["cases"], streamed=32, slots=3), one(robot["cases"], streamed=27, slots=3)
    figures = [
        100 * half["slower"],
        1e-3 * abs(half["freed_mb"]),
        None,
        whole["p50_ms"],
        robot["resident_ms"],
    ]
    yield OFFLOAD, "`offload: vision` streams", [*figures, 1e-3 * abs(whole["freed_mb"]), None, None, None]


def eight_bits() -> Iterator[Claim]:
    found = result("w8a8")
    whole = {row["precision"]: row["total"]["p50_ms"] for row in result("precision_w8a8")["cases"]}
    moved = one(found["errors"]["rows"], precision="w8a8, calibrated")["over_moved"]
    played = one(found["success"]["rows"], way="euler 10, w8a8, calibrated")
    won, n = played["won"], played["n"]
    shown = [whole["w8a8"], whole["exact"], 100 * moved, won, n, *percent(won, n)]
    yield PRECISION, "- **Speed.**", shown


def fewer_bits() -> Iterator[Claim]:
    cases = result("precision_bundled")["cases"]
    percents, halves = (
        {case["precision"]: 100 * case["to_float32"] for case in cases if case["dtype"] == dtype}
        for dtype in ("float32", "bfloat16")
    )
    yield TUNING, "| `fp8` |", [percents["fp8"]]
    yield TUNING, "| `nvfp4` |", [percents["nvfp4"], halves["nvfp4"]]
    yield TUNING, "| `int8`, `int4` |", [percents["int8"], percents["int4"]]
    calibrated = one(result("w8a8")["errors_gpu"]["rows"], precision="w8a8, calibrated")
    yield TUNING, "| `w8a8`, `w8a8-int4` |", [100 * calibrated["to_exact"]["over_moved"]]
    for goal, count in (
        ("(none)", 2),
        ("`first_chunk`", 3),
        ("`rate`", 3),
        ("`memory`", 1),
        ("`many_robots`", 3),
    ):
        yield TUNING, f"| {goal} |", [None] * count  # of other pages, which have their claims


def plans() -> Iterator[Claim]:
    found = result("plan")
    yield PLAN, "All together", [found[name] for name in ("met", "of", "whole_met", "whole_of")]


def plan_of_an_h100() -> Iterator[Claim]:
    """Sentences of docs/lab/plan.md: how far off the two plans were at most."""
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


def streams() -> Iterator[Claim]:
    for name, more in (
        ("stream_text_groups", ", 40 s"),
        ("stream_h100", ", an H100"),
        ("stream_fresh", ", joints at 1 kHz"),
        ("stream_fresh_pi05", ""),
    ):
        for case in result(name)["cases"]:
            named = f"| {case['kind']}, `{case['way']}`, `{case['setting']}`{more} |"
            first, chunks = case["first_chunk"], case["chunks"]
            figures = [case["vision"]["hz"], chunks["hz"], chunks["interval"]["p99_ms"], first["p50_ms"]]
            figures += [first["p99_ms"], case["tokens_hz"], case["saturated"]["against_first"]]
            yield STREAMING, named, figures


def real_nodes() -> Iterator[Claim]:
    found: list[float | None] = []
    cases = [("real nodes", case) for case in result("nodes_gpu")["cases"]]
    cases += [("slower host", case) for case in result("nodes_gpu_slow_host")["cases"]]
    for where, case in cases:
        times, vision = case["image_to"], case["vision"]
        figures = [vision["hz"], vision["dropped"], vision["frames"], case["chunks"]["hz"]]
        figures += [times[what]["p50_ms"] for what in ("arrival", "observation", "prefix", "chunk")]
        command = [times["command"][p] for p in ("p50_ms", "p99_ms")]
        found += command
        named = f"| pi0, `{case['way']}`, {where}, `{case['transport']}` |"
        yield STREAMING, named, [*figures, *command, case["commands"]["hz"]]
    yield PERFORMANCE, "| pi0 through the nodes over ROS 2,", [2, *found[:2]]
    yield README, "| first chunk of a frame", [None, 2, *found[:2]]
    grouped = result("stream_text_groups")["cases"][1]
    figures = [grouped["chunks"]["hz"], grouped["vision"]["hz"], grouped["tokens_hz"]]
    yield README, "| chunks a second", figures


def corun() -> Iterator[Claim]:
    cases = result("corun_measured")["cases"]
    ways = ("two_streams", "adaptive", "planned")
    averages = [one(cases, policy=way, requests=87)["average_s"] for way in ways]
    yield CORUN, "**Measured** on an H200", [87, None, *averages]
