"""Figures of predictions, and of memory."""

from __future__ import annotations

from collections.abc import Iterator

from claims import PLAN, Claim, printed, result


def counted_memory() -> Iterator[Claim]:
    for row in result("memory")["rows"]:
        model = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA"}[row["model"]]
        kept = "kept" if row["keep_exact"] else "given up"
        names = ("final_bytes", "peak_bytes", "planned_bytes", "total_computed_bytes")
        *held, total = (row[name] / 1e9 for name in names)
        figures = [*held, abs(row["off_percent"]), row["beyond_in_layers"], total]
        yield PLAN, f"| memory: {model}, {row['precision']}, {kept} |", figures


def plans() -> Iterator[Claim]:
    found = result("plan")
    names = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA", "smolvla": "SmolVLA"}
    bits = {"exact": "bfloat16", "all-int8": "int8", "all-fp8": "fp8", "all-fp4": "NVFP4"}
    boards = {"orin-agx-64": "Orin AGX", "thor": "Thor", "rtx-4090": "RTX 4090", "rtx-5090": "RTX 5090"}
    for row in found["rows"]:
        if not row["source"].startswith("published"):
            continue
        model, dtype = names[row["model"]], bits.get(row["precision"], row["precision"])
        views, by = (
            f"{row['views']} view{'s' * (row['views'] > 1)}",
            row["source"].removeprefix("published: "),
        )
        figures = [row[name] for name in ("measured_ms", "predicted_ms", "low_ms", "high_ms")]
        why = [None] * len(printed(row["reason"]))
        begins = f"| {boards[row['device']]}, {model}, {dtype}, {views}, {by} |"
        yield PLAN, begins, [*figures, abs(row["off_percent"]), *why]
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
