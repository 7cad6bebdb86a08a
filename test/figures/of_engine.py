"""Figures of one engine on a GPU: stages, its own path, pipelines, loading, offload, solvers."""

from __future__ import annotations

from collections.abc import Iterator

from claims import OFFLOAD, PERFORMANCE, PRECISION, STAGGERED, Claim, one, result

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
    for tower in result("offload_h100")["towers"]:
        yield OFFLOAD, f"| on an H100: {tower['tower']}, none |", [tower["resident_ms"]]
        for streamed, slots in OFFLOADED[tower["tower"]]:
            case = one(tower["cases"], streamed=streamed, slots=slots)
            named = f"{streamed} of {tower['layers']} layers, {slots} slot{'s' * (slots > 1)}"
            figures = [case["p50_ms"], case["predicted_ms"], 100 * case["slower"], abs(case["freed_mb"])]
            yield OFFLOAD, f"| on an H100: {tower['tower']}, {named} |", figures


def eight_bits() -> Iterator[Claim]:
    found = result("w8a8")
    whole = {row["precision"]: row["total"]["p50_ms"] for row in result("precision_w8a8")["cases"]}
    moved = one(found["errors"]["rows"], precision="w8a8, calibrated")["over_moved"]
    played = one(found["success"]["rows"], way="euler 10, w8a8, calibrated")
    shown = [whole["w8a8"], whole["exact"], 100 * moved, played["won"], played["n"]]
    yield PRECISION, "- **Speed.**", shown
