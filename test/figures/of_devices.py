"""Figures of predictions, and of memory."""

from __future__ import annotations

from collections.abc import Iterator

from claims import PLAN, ROOT, Claim, printed, result


def counted_memory() -> Iterator[Claim]:
    for row in result("memory")["rows"]:
        model = {"pi0": "pi0", "pi05": "pi0.5", "openvla": "OpenVLA"}[row["model"]]
        kept = "kept" if row["keep_exact"] else "given up"
        names = ("final_bytes", "peak_bytes", "planned_bytes", "total_computed_bytes")
        *held, total = (row[name] / 1e9 for name in names)
        figures = [*held, abs(row["off_percent"]), row["beyond_in_layers"], total]
        yield PLAN, f"| memory: {model}, {row['precision']}, {kept} |", figures


def plans() -> Iterator[Claim]:
    """All rows of docs/lab/plan.md, in the order of the file."""
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
    """Rows of docs/lab/plan.md that were measured beside two plans, one from micro-benchmarks."""
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
