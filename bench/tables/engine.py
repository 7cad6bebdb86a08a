"""Tables of one engine on a GPU: stages, its own path, agreement, precisions, solvers, shared forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.models import NAMES
from tables.forms import Line, cells, one, result, table, views, won

STAGES = ("encode", "prefill", "denoise")


@table
def images_to_actions() -> Iterator[Line]:
    """Captured stages beside the roofline, plain torch, and another package."""
    yield "", "1 view", "2 views", "3 views"

    def cases(kind: str, file: str = "engine") -> list[Mapping[str, Any]]:
        return [one(result(file)["cases"], kind=kind, views=count) for count in (1, 2, 3)]

    def ours(case: Mapping[str, Any], mark: str = "") -> str:
        total, *parts = (f"{case['ours'][name]['p50_ms']:.2f}" for name in ("total", *STAGES))
        return f"{mark}{total}{mark} ({'/'.join(parts)})"

    pi0 = cases("pi0")
    roofs = [case["roofline_ms"] for case in pi0]
    parts = ["/".join(f"{roof[name]:.2f}".removeprefix("0") for name in STAGES) for roof in roofs]
    yield (
        "roofline, pi0 (encode / prefill / denoise)",
        *(f"{roof['total']:.2f} ({part})" for roof, part in zip(roofs, parts, strict=True)),
    )
    yield "**pi0** (encode / prefill / denoise)", *(ours(case, "**") for case in pi0)
    yield "**pi0.5**", *(ours(case, "**") for case in cases("pi05"))
    yield (
        "the public Triton engine of the realtime-VLA paper, same GPU, measured before: pi0 / pi0.5",
        "16.1 / 17.1", "18.7 / 20.2", "21.1 / 22.8",
    )  # fmt: skip
    yield "plain torch in one CUDA graph, pi0", *(f"{case['plain graph']['p50_ms']:.1f}" for case in pi0)
    yield "plain torch, eager, pi0", *(f"{case['plain eager']['p50_ms']:.0f}" for case in pi0)
    for kind in ("pi0", "pi05"):
        yield f"on an H100, {NAMES[kind]}", *(ours(case) for case in cases(kind, "engine_h100"))


@table
def own_path() -> Iterator[Line]:
    """From frames in host memory to actions in host memory."""
    yield (
        "", "engine, median", "p99", "graphs alone", "more than the graphs", "`observe` returns after",
    )  # fmt: skip
    for case in result("engine_path")["cases"]:
        yield (
            f"{NAMES[case['kind']]}, {views(case['views'])}",
            *cells(
                case, "engine.p50_ms:.2f", "engine.p99_ms:.2f", "stages.p50_ms:.2f", "difference_ms:.2f",
                "observe.p50_ms:.2f",
            ),
        )  # fmt: skip


@table
def families() -> Iterator[Line]:
    """Families on the plain stages, and pi0-FAST: host to host; the last columns are of the most views."""
    measured = result("families")
    counts = sorted({case["views"] for case in measured["cases"]})
    yield "", "steps", "weights, GB", *map(views, counts), "p99", "no graphs", "error"
    for kind, name in NAMES.items():
        cases = {case["views"]: case for case in measured["cases"] if case["kind"] == kind}
        if not cases:
            continue
        last, steps = cases[max(cases)], str(measured["steps"].get(kind, 10))
        yield (
            name, f"tokens of {last['token']['p50_ms']:.2f} ms" if "token" in last else steps,
            f"{last['weights_gb']:.2f}",
            *(f"{cases[count]['frame']['p50_ms']:.1f}" if count in cases else "-" for count in counts),
            f"{last['frame']['p99_ms']:.1f}", f"{last['eager']['p50_ms']:.0f}" if "eager" in last else "-",
            f"{100 * last['error']:.2f} %" if "error" in last else "-",
        )  # fmt: skip


@table
def precisions() -> Iterator[Line]:
    """Of random weights, pi0 / pi0.5, and of the bundled policy."""
    yield (
        "", "encode, ms", "prefill, ms", "denoise, ms", "all, ms", "error against float32, random weights",
        "bundled policy: error; greatest, mrad", "its success",
    )  # fmt: skip
    random, bundled = result("precision_random")["cases"], result("precision_bundled")["cases"]
    for precision in ("exact", "fp8", "int8", "int4"):
        rows = [one(random, kind=kind, precision=precision) for kind in ("pi0", "pi05")]
        policy = one(bundled, precision=precision, dtype="float32")
        yield (
            precision,
            *(
                " / ".join(f"{row[name]['p50_ms']:.{2 - (name in ('denoise', 'total'))}f}" for row in rows)
                for name in (*STAGES, "total")
            ),
            " / ".join(f"{100 * row['to_float32']:.1f}" for row in rows) + " %",
            f"{100 * policy['to_float32']:.2f} %; {policy['max_mrad']:.0f}",
            won(policy["success"]),
        )


@table
def kernels_of_8_bits() -> Iterator[Line]:
    """Errors of the bundled policy's chunks on a GPU."""
    yield "captured stages", "rms, mrad", "greatest, mrad", "over how far they move"
    for row in result("w8a8")["errors_gpu"]["rows"]:
        if row["precision"] in ("fp8", "w8a8", "w8a8, calibrated"):
            figures = cells(row["to_exact"], "rms_mrad:.2f", "max_mrad:.1f", "over_moved:.2%")
            yield f"kernels, {row['precision']}", *figures


@table
def times_in_8_bits() -> Iterator[Line]:
    """Of pi0."""
    yield "pi0 on H100", *STAGES, "whole", "actions from float32, %"
    for row in result("precision_w8a8")["cases"]:
        if row["precision"] in ("exact", "fp8", "w8a8"):
            times = cells(row, *(f"{name}.p50_ms:.2f" for name in (*STAGES, "total")))
            yield f"measured, {row['precision']}", *times, f"{100 * row['to_float32']:.1f}"


@table
def solver_errors() -> Iterator[Line]:
    """In radians, against a fine integration and the default."""
    yield (
        "solver, steps", "error: median", "95 %", "greatest", "to the default: median", "95 %",
    )  # fmt: skip
    for row in result("solvers")["errors"]["ways"]:
        if row["way"] in ("euler 10", "euler 5", "ab2 5", "ab2 10"):
            forms = ("error.median", "error.p95", "error.most", "to_default.median", "to_default.p95")
            yield row["way"], *cells(row, *(f"{form}:.4f" for form in forms))


@table
def evaluations() -> Iterator[Line]:
    """Fewer evaluations of the action expert, on a GPU."""
    yield "", *STAGES, "images to actions", "error, %", "of plain torch, %"
    for case in result("evaluations")["cases"]:
        if case["views"] == 2 and case["way"] in ("euler 10", "ab2 5"):
            times = cells(case, *(f"{stage}.p50_ms:.2f" for stage in (*STAGES, "total")))
            errors = (f"{100 * case[measure]:.2f}" for measure in ("to_float32", "plain_to_float32"))
            yield f"{NAMES[case['kind']]}, 2 views, {case['way']}", *times, *errors


@table
def pipeline_text() -> Iterator[Line]:
    """Texts of N tokens beside actions of S steps, k of them begun with each frame."""
    rows = [r for r in result("pipeline")["oxygen"]["rows"] if (r["arrivals"], r["steps"]) == ("uniform", 10)]
    per_frame = sorted({row["per_frame"] for row in rows})
    yield "S = 10, N", "isolated", "plain torch", *(f"k = {k}" for k in per_frame)
    for tokens in sorted({row["tokens"] for row in rows}):
        cell = {row["per_frame"]: row for row in rows if row["tokens"] == tokens}
        alone = [number(next(iter(cell.values()))[name]) for name in ("isolated_frames_s", "plain_frames_s")]
        shown = (
            f"{number(row['frames_s'])}, {number(row['tokens_s'])} ({row['over_isolated']:.1f} x)"
            if (row := cell.get(k))
            else "-"
            for k in per_frame
        )
        yield str(tokens), *alone, *shown


@table
def pipeline_slack() -> Iterator[Line]:
    """Text in the slack of actions."""
    hz = {name: number(value) for name, value in result("pipeline")["oxygen"]["beside"].items()}
    yield (
        f"Text only in the time that actions leave over: {hz['with_text_hz']} frames/s instead of "
        f"{hz['alone_hz']}, with {hz['tokens_s']} tokens/s."
    )


@table
def pipeline_frames() -> Iterator[Line]:
    """Frames of K tokens each, by the ways to share forwards."""
    every = result("pipeline")["actionflow"]["rows"]
    length = min(row["prompt"] for row in every)
    rows = {(row["system"], row["tokens"]): row for row in every if row["prompt"] == length}
    tokens = sorted({number for _, number in rows})
    yield f"L = {length}", *(f"K = {k}" for k in tokens)
    for system in dict.fromkeys(system for system, _ in rows if not system.endswith("fresh")):
        yield system, *(aged(rows.get((system, k), {"none": True})) for k in tokens)


def aged(row: Mapping[str, Any]) -> str:
    """Frames/s and the age of a frame; with the accepted drafts where they are not as the row's name says."""
    from grids.actionflow import drafted_right  # it imports torch

    if "none" in row:
        return "-"
    text = f"{number(row['frames_s'])}, {number(row['age_p50_ms'])} ms"
    word, _, share = row["system"].partition("%")[0].partition(" ")
    if word != "speculative":
        return text
    right = drafted_right(int(share) / 100, row["tokens"])
    return text if row["accepted"] == right else f"{text} ({number(row['accepted'])} of {right})"


def number(value: Any) -> str:
    """Three digits, and more where they are before the point."""
    if not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
