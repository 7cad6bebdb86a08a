"""Figures of predictions."""

from __future__ import annotations

from collections.abc import Iterator

from claims import PLAN, Claim, result


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
