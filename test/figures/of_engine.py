"""Figures of one engine on a GPU: stages, its own path, pipelines, loading, offload, solvers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from claims import OFFLOAD, PERFORMANCE, PLAN, PRECISION, README, SOLVERS, STAGGERED, Claim, one, result

from vla_accel_ros.models.config import PI0

OFFLOADED = {"pi0": ((27, 3), (14, 3), (4, 1), (2, 1)), "cogagent": ((63, 3), (53, 3), (32, 3))}
"""Layers of a tower, and slots, that the page shows."""


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
    yield README, "- The rows of an H200 are of 2026-11-26,", [*[None] * 3, *totals, *[None] * 3]
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


def block_shapes() -> Iterator[Claim]:
    found = result("block_shapes")
    for row in found["compared"]:
        begins = f"| {row['launches']} {row['kernels']} | {row['sizes']} | {row['processors']} |"
        figures = [row[name][of] for name in ("chosen", "by_count", "table") for of in ("mean", "most")]
        yield PERFORMANCE, begins, figures


def guided() -> Iterator[Claim]:
    names = {"act": "act", "graph": "graph", "staggered step": "step", "staggered, running": "running"}
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
    acts = [one(cases, kind=kind, path="act") for kind in ("pi0", "pi05")]
    slower = sorted(case["guided"]["more_percent"] for case in acts)
    begins = "| guided and committed chunks, captured |"
    committed = sorted(case["committed"]["more_percent"] for case in acts)
    graphs = [one(cases, kind=kind, path="graph") for kind in ("pi0", "pi05")]
    most = [max(case[way]["more_percent"] for case in graphs) for way in ("guided", "committed")]
    yield README, begins, [*slower, *committed, *most]
    plain = [one(cases, kind=kind, path="plain torch") for kind in ("pi0", "pi05")]
    eager = [case[way]["p50_ms"] for way in ("free", "exact Jacobian") for case in plain]
    yield PERFORMANCE, "- In plain torch a free chunk takes", eager


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


def pipelines() -> Iterator[Claim]:
    part, text = (
        result("pipeline"),
        one(result("pipeline")["oxygen"]["rows"], steps=10, tokens=30, per_frame=1),
    )
    several = one(part["oxygen"]["rows"], steps=10, tokens=30, per_frame=3, arrivals="uniform")
    others = [one(part["oxygen"]["rows"], steps=steps, tokens=30, per_frame=1) for steps in (5, 20)]
    quick = result("pipeline_quick")
    beside_text = {row["per_frame"]: row for row in quick["oxygen"]["rows"]}
    newest = beside_text[1]
    speed = [newest["frames_s"], None, newest["tokens_s"], newest["over_isolated"]]
    yield README, "| pi0.5, text beside actions,", [None, None, *speed]
    again = [newest["over_isolated"], newest["frames_s"], newest["tokens_s"], None]
    again += [beside_text[3]["over_isolated"], None]
    many = [text["over_isolated"], text["frames_s"], text["tokens_s"], None, several["over_isolated"], None]
    many += [None, others[0]["over_isolated"], None, others[1]["over_isolated"]]
    yield PERFORMANCE, "| pi0.5, 2 views, N = 30", [None, None, *many, *again]
    plain = [text["over_plain"], text["frames_s"] / 2.43, None, newest["over_plain"]]
    yield PERFORMANCE, "| >= 10 x plain torch", plain
    beside = part["oxygen"]["beside"]
    lost = 100 * (1 - beside["with_text_hz"] / beside["alone_hz"])
    now = quick["oxygen"]["beside"]
    lower = [100 * (1 - now["with_text_hz"] / now["alone_hz"]), now["tokens_s"]]
    yield PERFORMANCE, "| text lowers the action rate", [None, None, lost, beside["tokens_s"], *lower]
    both = [(found["actionflow"]["rows"], found["actionflow"]["forwards"]) for found in (part, quick)]
    pipelined = [
        [one(rows, system="pipelined", tokens=tokens, prompt=276) for tokens in (7, 32)] for rows, _ in both
    ]
    short, long = pipelined[1]
    rates = [short["frames_s"], short["over_sequential"], None, long["frames_s"], long["over_sequential"]]
    yield README, "| OpenVLA-7B's Llama,", [None, *rates]
    ratios = [row["over_sequential"] for rows in pipelined for row in rows]
    yield PERFORMANCE, "| OpenVLA-7B-sized, pipelined", [None] * 4 + ratios
    eager = one(both[1][0], system="HF eager", tokens=7, prompt=276)["frames_s"]
    over = [pipelined[0][0]["over_hf"], *[None] * 4, pipelined[1][0]["over_hf"], eager]
    yield PERFORMANCE, "| >= 12 x HF eager", [None, *over]
    figures = list[float | None]()
    for _, forwards in both:
        seven, many_tokens = (one(forwards, tokens=tokens, prompt=276) for tokens in (7, 32))
        figures += [seven["packed_ms"], None, None, seven["packed_by_16_ms"], None]
        figures += [many_tokens["packed_ms"], None]
    yield PERFORMANCE, "| one packed forward", [None, *figures]
    then, half = (one(rows, system="speculative 50%", tokens=32, prompt=276) for rows, _ in both)
    halves = [half["frames_s"], half["age_p50_ms"], then["frames_s"], half["accepted"]]
    staggered = {(row["system"], row["steps"]): row for row in part["staggered"]["rows"]}
    ten, before = (staggered[key] for key in (("staggered", 10), ("sequential", 10)))
    now_staggered = {(row["system"], row["steps"]): row for row in quick["staggered"]["rows"]}
    figures = []
    for rows in (staggered, now_staggered):
        ours, alone, few = (rows[key] for key in (("staggered", 10), ("sequential", 10), ("staggered", 5)))
        figures += [ours["gain"], ours["chunks_s"], alone["chunks_s"], few["gain"], None]
    yield PERFORMANCE, "| staggered >= 5 x", [None, *figures]
    steps = [1e3 / rows["staggered", 10]["chunks_s"] for rows in (now_staggered, staggered)]
    yield PERFORMANCE, "- **Staggered on 2026-11-26**: a step takes", [*steps, None, *halves]
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
    for file, on in (("offload", ""), ("offload_h100", "on an H100: ")):
        for tower in result(file)["towers"]:
            yield OFFLOAD, f"| {on}{tower['tower']}, none |", [tower["resident_ms"]]
            for streamed, slots in OFFLOADED[tower["tower"]]:
                case = one(tower["cases"], streamed=streamed, slots=slots)
                named = f"{streamed} of {tower['layers']} layers, {slots} slot{'s' * (slots > 1)}"
                figures = [case["p50_ms"], case["predicted_ms"], 100 * case["slower"], abs(case["freed_mb"])]
                yield OFFLOAD, f"| {on}{tower['tower']}, {named} |", figures


def chunks_together() -> Iterator[Claim]:
    cases = result("chunks_at_once")["cases"]
    for chunks in sorted({case["chunks"] for case in cases}):
        both = [one(cases, kind=kind, chunks=chunks) for kind in ("pi0", "pi05")]
        figures = [figure for case in both for figure in (case["p50_ms"], case["against_one"])]
        yield STAGGERED, f"| {chunks} |", figures


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
    cases, names = result("evaluations")["cases"], {"pi0": "pi0", "pi05": "pi0.5"}
    for case in cases:
        if case["views"] == 2 or case["way"] in ("euler 10", "ab2 5"):
            name = f"{names[case['kind']]}, {case['views']} view{'s' * (case['views'] > 1)}, {case['way']}"
            figures = [case[stage]["p50_ms"] for stage in ("encode", "prefill", "denoise", "total")]
            figures += [100 * case[error] for error in ("to_float32", "plain_to_float32")]
            yield SOLVERS, f"| {name} |", figures
    five, in_fp8 = (one(cases, kind="pi0", views=2, way=way) for way in ("ab2 5", "ab2 5, fp8"))
    measured = five["denoise"]["p50_ms"], five["total"]["p50_ms"]
    yield SOLVERS, "- **On the H100**", [*measured, *[None] * 8, in_fp8["total"]["p50_ms"]]
    figures = [in_fp8["total"]["p50_ms"], *[None] * 13]
    yield PRECISION, "- **With five evaluations** of `ab2` instead of ten steps", figures


def eight_bits() -> Iterator[Claim]:
    """All rows of docs/lab/precision.md that have figures."""
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
    boards = {"orin-agx-64": "Orin AGX", "h200": "H200"}
    for row in found["predicted"]["rows"]:
        if row["kind"] == "pi05":
            figures = [row[name] for name in ("encode", "prefill", "denoise", "whole", "low", "high")]
            yield PRECISION, f"| {boards[row['device']]}, {row['precision']} |", figures


def frontier() -> Iterator[Claim]:
    """What an Orin would take, in docs/lab/plan.md."""
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
