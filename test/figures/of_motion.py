"""Figures of motion: the demo, hand-over, noise, cameras, force, chunks through shared memory, horizons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from claims import HIGH_RATE, HORIZON, PERFORMANCE, TRACE, Claim, one, result

MEASURES = ("overall", "at_place")


def demo() -> Iterator[Claim]:
    found, ring = result("demo"), result("demo_ring")
    tasks, answers, late = found["successes"], found["answers"], found["deadline_misses"]
    won = [number for task in ("reach", "place", "follow") for number in tasks[task]]
    yield PERFORMANCE, "| success: reach, place, follow |", [*won, answers["right"], answers["asked"]]
    loops = ("vision", "action", "language")
    rates = [found["rates_hz"][name] for name in loops]
    yield PERFORMANCE, "| loops: vision, action; turns", [*rates, *(late[name] for name in loops)]
    others = sorted(start["age_ms"]["p50"] for start in found["starts"][1:])
    ages = [found["age_ms"]["p50"], found["age_ms"]["p99"], *others]
    ages += [ring["age_ms"]["p50"], ring["age_ms"]["p99"]]
    yield PERFORMANCE, "| age from image stamp to published", ages
    jerk = found["jerk"]
    yield PERFORMANCE, "| jerk of the arm (RMS at 30 Hz)", [jerk["commanded"], jerk["measured"], None]
    yield PERFORMANCE, "| real-time factor of the simulator |", [found["real_time_factor"]["mean"]]
    share = [100 * found["cpu_share"][name] for name in ("inference", "sim_robot", "trajectory")]
    yield PERFORMANCE, "| share of one core: inference,", share
    tried = (sum(won[::2]), sum(won[1::2]))
    yield PERFORMANCE, "| the demo on two cores", [*tried, *ages[:2]]
    slow = result("slow_demo")
    chunk, slowed = slow["chunk_ms"], slow["demo"]
    figures = [slow["slower"], chunk["slowed"], chunk["reference"], None, 1 / slow["share_of_a_core"]]
    figures += [slow["succeeded"], slowed["episodes"], slowed["rates_hz"]["vision"], slowed["age_ms"]["p50"]]
    yield PERFORMANCE, "On a machine that needs", figures


def control() -> Iterator[Claim]:
    holds, limits = result("hold"), result("limits")
    ms = [
        row["update"]["p50_ms"] for row in limits["rows"] if (row["kind"], row["horizon"]) == ("typical", 50)
    ]
    wild = max(
        row["update"]["p50_ms"] for row in limits["rows"] if (row["kind"], row["horizon"]) == ("wild", 50)
    )
    slowest = max(row["max_ms"] for row in holds["rows"])
    yield (
        PERFORMANCE,
        "`~/hold` is answered in",
        [slowest, holds["holds"], None, min(ms), max(ms), wild, None],
    )
    stages = result("stages_cpu")
    # observe, act, ask
    each = [stages["stages"][name][p] for name in stages["stages"] for p in ("p50_ms", "p99_ms")]
    figures = [stages["runs"], *each[:2], None, *each[2:]]
    yield PERFORMANCE, "The engine's calls alone,", figures
    for label, style in (
        ("whole chunk, stamped at its observation", "full chunk, stamped at observation"),
        ("one point per tick, due a step later", "single point per tick, due a step later"),
        ("past dropped, velocities given", "+ velocities"),
        ("past dropped, velocities, the sender blends", "+ sender blends over 200 ms"),
        ("this package, mode `async`", "our buffer, async"),
        ("this package, mode `blend` (the default)", "our buffer, blend"),
    ):
        rows = [one(result("handover")["styles"], style=style, from_desired=on) for on in (True, False)]
        named = [None] * label.endswith("sender blends")
        yield PERFORMANCE, f"| {label}", [*named, *(row["acceleration"] for row in rows)]
    both = ("our buffer, blend", "full chunk, stamped at observation")
    styles = [one(result("handover")["styles"], style=style, from_desired=True) for style in both]
    yield PERFORMANCE, "| peak acceleration where", [row["acceleration"] for row in styles]


def noise() -> Iterator[Claim]:
    found = result("handover")["noise"]

    def rounded(figure: dict[str, Any], scale: float) -> list[float]:
        return [abs(scale * value) for value in (figure["median"], *figure["interval_95"])]

    for row in found["pooled"]:
        gain = row["success"]
        figures = [row["without"]["won"], row["with"]["won"], row["with"]["n"]]
        figures += [abs(100 * value) for value in (gain["difference"], *gain["interval_95"])]
        measures = [row[name] for name in ("seam", "jerk", "time_s") if row[name]["n"]]
        shares = [share for measure in measures for share in rounded(measure, 100)]
        yield PERFORMANCE, f"| {row['title']} |", [*figures, *shares]


def cameras() -> Iterator[Claim]:
    for label, transport in (("ring", "ring"), ("raw images", "raw"), ("JPEG", "compressed")):
        figures = []
        for width in (640, 1280):
            row = one(result("ingest")["rows"], transport=transport, width=width)
            figures += [row["hz"], row["cpu"], row["age_ms"]["p50"], row["age_ms"]["p99"]]
        yield PERFORMANCE, f"| {label} |", figures


def force() -> Iterator[Claim]:
    names = ("command_p50_ms", "command_p99_ms", "command_max_ms", "commands_late_percent")
    for row in result("force")["sources"]:
        figures = [row[name] for name in (*names, "reaction_p50_ms", "reaction_p99_ms")]
        yield PERFORMANCE, f"| {row['source']}, {row['force_priority']} |", figures


def high_rate() -> Iterator[Claim]:
    found, parts = result("chunk_port"), ("write", "read", "update", "stream", "sum")
    for row in found["parts"]:
        figures = [row[part]["p50_ms"] for part in parts] + [row["sum"]["p99_ms"]]
        yield HIGH_RATE, f"| {row['kind']}, {row['joints']} joints |", figures
    for row in found["whole"]:
        names = ("write_to_follow_p50", "write_to_follow_p99", "interval_p50", "interval_p99", "interval_max")
        figures = [row[name] for name in ("chunks_hz", "followed_hz", "commands_hz")]
        figures += [*(row[f"{name}_ms"] for name in names), row["cpu_percent"]]
        yield HIGH_RATE, f"| whole, {row['joints']} joints |", figures
    loads = [found[f"load_{when}"][0] for when in ("before", "after")]
    date = [float(part) for part in found["date"][:10].split("-")]
    yield HIGH_RATE, "Load", [*loads, found["machine"]["cores"], *date]


def horizons() -> Iterator[Claim]:
    found = result("horizon")
    signals, front = found["signals"], found["front"]
    rows = signals["correlations"]
    for name in dict.fromkeys(row["signal"] for row in rows):
        told = [one(rows, signal=name, error=error)[of] for error in ("later", "mean") for of in MEASURES]
        figures = [
            abs(v) for rho in told if rho["rho"] is not None for v in (rho["rho"], *rho["interval_95"])
        ]
        yield HORIZON, f"| {name} |", figures
    for row in front["rows"]:
        figures = [row["won"], row["n"], *(100 * bound for bound in row["interval_95"])]
        figures += [row["actions"], row["chunks_per_s"]]
        for name in ("time_s", "jerk"):
            figures += [row[name]["median"], *row[name]["interval_95"]]
        yield HORIZON, f"| {row['condition']}, `{row['horizon']}` |", figures


def timeline() -> Iterator[Claim]:
    found = result("timeline")
    hooks, named = found["hooks"], ("callback of an image", "micro-batch")
    figures = [found["events"]["span"]["p50"], found["threads"]["cpu_us"], *(hooks[n]["p50"] for n in named)]
    yield TRACE, "An event takes", [*figures, found["memory_mb"], found["page_ms"]["p50"]]
    yield TRACE, "Every process of a robot", [found["kept"], None]
