"""Rows of bench/results/plan.json and plan_GPU.json as the tables of docs/lab/plan.md."""

from __future__ import annotations

from typing import Any

NAMES = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA", "smolvla": "SmolVLA"}
MEASURED = "measured"
"""The device of rows whose plan is from micro-benchmarks of the same machine."""


def begins(row: dict[str, Any], gpu: str) -> str:
    """How a row of the table begins. gpu: of the file's name."""
    views = f"{row['views']} view{'s' * (row['views'] > 1)}"
    return f"| on {gpu}: {NAMES[row['model']]}, {views}, {row['precision']}, {row['stage']} |"


def pairs(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows from micro-benchmarks, each with that of the shipped file."""
    key = ("model", "views", "precision", "stage")
    shipped = {tuple(row[name] for name in key): row for row in rows if row["device"] != MEASURED}
    return [(row, shipped[tuple(row[name] for name in key)]) for row in rows if row["device"] == MEASURED]


BITS = {"exact": "bfloat16", "all-int8": "int8", "all-fp8": "fp8", "all-fp4": "NVFP4"}
BOARDS = {"orin-agx-64": "Orin AGX", "thor": "Thor", "rtx-4090": "RTX 4090", "rtx-5090": "RTX 5090"}


def recorded_begins(row: dict[str, Any], number: int) -> str:
    """How a row of plan.json begins, that is not of the engine's table. number: from 1 on, of our own."""
    model, dtype, source = NAMES[row["model"]], BITS.get(row["precision"], row["precision"]), row["source"]
    if source.startswith("published"):
        by = source.removeprefix("published: ")
        views = f"{row['views']} view{'s' * (row['views'] > 1)}"
        return f"| {BOARDS[row['device']]}, {model}, {dtype}, {views}, {by} |"
    by = source.removesuffix(".json").split(",")[0].split("/")[-1]
    stage = f"{row['stage']} of {row['batch']}"
    return f"| {model} on {row['device'].upper()}, {dtype}, {stage}, {by}, row {number} |"


def recorded_page(rows: list[dict[str, Any]]) -> str:
    """Markdown of the rows of plan.json, table by table."""
    engine: dict[str, list[str]] = {}
    ours: list[str] = []
    others: list[str] = []
    for row in rows:
        off = f"{abs(row['off_percent']):.1f} % {'more' if row['off_percent'] > 0 else 'less'}"
        measured, planned = row["measured_ms"], row["predicted_ms"]
        if row["source"] == "engine.json":
            name = f"| {NAMES[row['model']]}, {row['views']} view{'s' * (row['views'] > 1)} |"
            cells = engine.setdefault(name, [])
            cells.append(f" {measured:.2f}, {planned:.2f} |")
            if row["stage"] == "whole":
                cells.append(f" {off} |")
            continue
        found = others if row["source"].startswith("published") else ours
        least = f" ({row['low_ms']:.1f} to {row['high_ms']:.1f})" if found is others else ""
        digits = 1 if found is others else 2
        met = "met" if row["met"] else f"missed: {row['reason']}"
        begun = recorded_begins(row, len(ours) + 1)
        found.append(f"{begun} {measured:.{digits}f} | {planned:.{digits}f}{least} | {off} | {met} |")
    return "\n\n".join(
        "\n".join(lines) for lines in ([k + "".join(v) for k, v in engine.items()], ours, others)
    )


def page(rows: list[dict[str, Any]], stem: str) -> str:
    """Markdown. stem: of the file's name, plan or plan_GPU."""
    if stem == "plan":
        return recorded_page(rows)
    gpu = stem.removeprefix("plan_").upper()
    lines = [
        "| | measured | from micro-benchmarks | from the shipped file | misses |",
        "|---|---|---|---|---|",
    ]
    for own, shipped in pairs(rows):
        told = [f"{row['predicted_ms']:.2f} ({row['off_percent']:+.1f} %)" for row in (own, shipped)]
        why = "; ".join(dict.fromkeys(row["reason"] for row in (own, shipped) if not row["met"]))
        lines.append(f"{begins(own, gpu)} {own['measured_ms']:.2f} | {' | '.join(told)} | {why} |")
    return "\n".join(lines)
