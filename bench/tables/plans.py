"""Tables of what `vla plan` expects, beside what was published and counted."""

from __future__ import annotations

from collections.abc import Iterator

from shared.models import NAMES
from tables.forms import Line, cells, result, table, views

BOARDS = {"orin-agx-64": "Orin AGX", "thor": "Thor", "rtx-4090": "RTX 4090", "rtx-5090": "RTX 5090"}
OPTIONS = {
    ("exact", 2, 10), ("w8a8", 2, 10), ("w8a8-int4", 2, 10), ("w8a8-int4", 2, 5), ("exact", 1, 10),
    ("w8a8-int4", 1, 5),
}  # fmt: skip
"""Precision, views and evaluations that the page shows."""
BITS = {"exact": "bfloat16", "all-int8": "int8", "all-fp8": "fp8", "all-fp4": "NVFP4"}


@table
def published_times() -> Iterator[Line]:
    """What others published, beside the plan."""
    yield "", "published", "predicted", "", ""
    for row in result("plan")["rows"]:
        kind, _, by = row["source"].partition(": ")
        if kind != "published" or row["views"] != 2 or row["precision"] == "all-fp4":
            continue
        dtype = BITS.get(row["precision"], row["precision"])
        low, high = cells(row, "low_ms:.1f", "high_ms:.1f")
        more = "more" if row["off_percent"] > 0 else "less"
        yield (
            f"{BOARDS[row['device']]}, {NAMES[row['model']]}, {dtype}, {views(row['views'])}, {by}",
            f"{row['measured_ms']:.1f}", f"{row['predicted_ms']:.1f} ({low} to {high})",
            f"{abs(row['off_percent']):.1f} % {more}", f"missed: {row['reason']}" if row["reason"] else "met",
        )  # fmt: skip


@table
def counted_memory() -> Iterator[Line]:
    """Bytes of a loaded engine, counted, beside the plan's."""
    yield (
        "", "in the end, GB", "at most", "plan of the end", "off", "beyond the end, layers",
        "computed with context and work spaces",
    )  # fmt: skip
    for row in result("memory")["rows"]:
        weights = "kept" if row["keep_exact"] else "given up"
        names = ("final_bytes", "peak_bytes", "planned_bytes")
        yield (
            f"memory: {NAMES[row['model']]}, {row['precision']}, {weights}",
            *(f"{row[name] / 1e9:.2f}" for name in names), f"{row['off_percent']:+.2f} %",
            f"{row['beyond_in_layers']:.2f}", f"{row['total_computed_bytes'] / 1e9:.2f}",
        )  # fmt: skip


@table
def options_of_an_orin() -> Iterator[Line]:
    """Precisions and evaluations of pi0.5."""
    yield (
        "pi0.5 on Orin AGX", "encode", "prefill", "denoise", "whole", "at least, at most", "arithmetic",
        "memory", "start",
    )  # fmt: skip
    for row in result("w8a8")["frontier"]["rows"]:
        if (row["precision"], row["views"], row["evaluations"]) in OPTIONS and row["prompt"] == 20:
            yield (
                f"{row['precision']}, {views(row['views'])}, {row['evaluations']} evaluations",
                *cells(row, *(f"{name}:.1f" for name in ("encode", "prefill", "denoise", "whole"))),
                f"{row['low']:.1f}, {row['high']:.1f}", *(f"{ms:.1f}" for ms in row["bound"].values()),
            )  # fmt: skip
