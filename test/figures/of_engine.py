"""Figures of one engine on a GPU: stages, its own path, pipelines, loading, offload, solvers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from claims import OFFLOAD, PERFORMANCE, PLAN, PRECISION, SOLVERS, STAGGERED, Claim, one, result

OFFLOADED = {"pi0": ((27, 3), (2, 1)), "cogagent": ((63, 3), (32, 3))}
"""Layers of a tower, and slots, that the page shows."""


def guided_staggered() -> Iterator[Claim]:
    found = result("handover")["staggered"]
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
    yield PERFORMANCE, "| pi0, images to actions,", [*views, *ours("pi0"), min(above), max(above), *graphs]
    names = ("total", "encode", "prefill", "denoise")
    yield PERFORMANCE, "| roofline, pi0 (", [case["roofline_ms"][name] for case in pi0 for name in names]
    yield PERFORMANCE, "| **pi0** (encode", [figure for case in pi0 for figure in parts(case)]
    yield PERFORMANCE, "| **pi0.5** |", [figure for case in pi05 for figure in parts(case)]
    yield PERFORMANCE, "| the public Triton engine", [None] * 6
    yield PERFORMANCE, "| plain torch in one CUDA graph, pi0 |", graphs
    yield PERFORMANCE, "| plain torch, eager, pi0", [case["plain eager"]["p50_ms"] for case in pi0]
    h100 = [
        one(result("engine_h100")["cases"], kind=kind, views=n) for kind in ("pi0", "pi05") for n in (1, 2, 3)
    ]
    yield PERFORMANCE, "| on an H100, pi0 |", [figure for case in h100[:3] for figure in parts(case)]
    yield PERFORMANCE, "| on an H100, pi0.5 |", [figure for case in h100[3:] for figure in parts(case)]


def guided() -> Iterator[Claim]:
    names = {"act": "act", "graph": "graph"}
    cases = result("guided")["cases"]
    for case in cases:
        if case["path"] not in names:
            continue
        figures = list[float | None]()
        for way in ("free", "guided", "committed"):
            row = case[way]
            more = [abs(row["more_percent"])] if way != "free" else []
            figures += [row["p50_ms"], row["p99_ms"], *more]
        kind = {"pi0": "pi0", "pi05": "pi0.5"}[case["kind"]]
        yield PERFORMANCE, f"| {kind}, {names[case['path']]} |", figures


def own_path() -> Iterator[Claim]:
    yield from _own_path("engine_path", "own path")
    captured = result("engine_path_smolvla")["cases"]
    for case in captured:
        begins = f"| SmolVLA, {case['views']} view{'s' * (case['views'] > 1)}, captured |"
        both = case["engine"], case["plain"]
        yield PERFORMANCE, begins, [times[name] for times in both for name in ("p50_ms", "p99_ms")]


def _own_path(file: str, named: str) -> Iterator[Claim]:
    names = {"pi0": "pi0", "pi05": "pi0.5", "smolvla": "SmolVLA"}
    for case in result(file)["cases"]:
        begins = f"| {names[case['kind']]}, {case['views']} view{'s' * (case['views'] > 1)}, {named} |"
        taken, graphs = case["engine"], case["stages"]["p50_ms"]
        figures = [taken["p50_ms"], taken["p99_ms"], taken["p99_over_p50"], graphs, case["difference_ms"]]
        yield PERFORMANCE, begins, [*figures, *(case[name]["p50_ms"] for name in ("observe", "upload"))]


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


def offload() -> Iterator[Claim]:
    for tower in result("offload_h100")["towers"]:
        yield OFFLOAD, f"| on an H100: {tower['tower']}, none |", [tower["resident_ms"]]
        for streamed, slots in OFFLOADED[tower["tower"]]:
            case = one(tower["cases"], streamed=streamed, slots=slots)
            named = f"{streamed} of {tower['layers']} layers, {slots} slot{'s' * (slots > 1)}"
            figures = [case["p50_ms"], case["predicted_ms"], 100 * case["slower"], abs(case["freed_mb"])]
            yield OFFLOAD, f"| on an H100: {tower['tower']}, {named} |", figures


def solvers() -> Iterator[Claim]:
    found = result("solvers")
    for row in found["errors"]["ways"]:
        error, default = row["error"], row["to_default"]
        figures = [None, error["median"], error["p95"], error["most"], default["median"], default["p95"]]
        yield SOLVERS, f"| {row['way']} |", figures + ([row["ms"]["p50"]] if row["ms"] else [])
    for row in found["success"]["rows"]:
        each = row["conditions"].values()
        figures = [number for one in each for number in (one["won"], one["n"])]
        figures += [100 * bound for bound in row["interval_95"]]
        for name in ("time_s", "jerk"):
            figures += [row[name]["median"], *row[name]["interval_95"]]
        yield SOLVERS, f"| episodes by {row['way']} |", figures
    cases, names = result("evaluations")["cases"], {"pi0": "pi0", "pi05": "pi0.5"}
    for case in cases:
        if case["views"] == 2:
            name = f"{names[case['kind']]}, {case['views']} view{'s' * (case['views'] > 1)}, {case['way']}"
            figures = [case[stage]["p50_ms"] for stage in ("encode", "prefill", "denoise", "total")]
            figures += [100 * case[error] for error in ("to_float32", "plain_to_float32")]
            yield SOLVERS, f"| {name} |", figures


def eight_bits() -> Iterator[Claim]:
    """All rows of docs/lab/precision.md that have figures."""
    found = result("w8a8")
    on_gpu = found["errors_gpu"]["rows"]
    for row in on_gpu[1:]:
        error = row["to_exact"]
        figures = [error["rms_mrad"], error["max_mrad"], 100 * error["over_moved"]]
        yield PRECISION, f"| kernels, {row['precision']} |", figures
    names = {"pi0": "pi0", "pi05": "pi0.5"}
    drawn = found["outliers"]["rows"]
    for kind, precision in dict.fromkeys((row["kind"], row["precision"]) for row in drawn):
        rows = [row for row in drawn if (row["kind"], row["precision"]) == (kind, precision)]
        worst = list[float | None]()
        for part in ("tokens", "keys", "values", "actions"):
            worst += [min(row[part]["cosine"] for row in rows), 100 * max(row[part]["error"] for row in rows)]
        yield PRECISION, f"| {names[kind]}, {precision} |", worst
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


def frontier() -> Iterator[Claim]:
    """What an Orin would take, in docs/lab/plan.md."""
    found = result("w8a8")["frontier"]
    for row in found["rows"]:
        views = f"{row['views']} view{'s' * (row['views'] > 1)}"
        asked = f"{row['evaluations']} evaluations, prompt of {row['prompt']}"
        begins = f"| option: {row['precision']}, {views}, {asked} |"
        times = [row[name] for name in ("encode", "prefill", "denoise", "whole", "low", "high")]
        yield PLAN, begins, [*times, *row["bound"].values()]
