"""Figures of motion: the demo, hand-over, noise, cameras, force, chunks through shared memory, horizons."""

from __future__ import annotations

from collections.abc import Iterator

from claims import PERFORMANCE, TRACE, Claim, counted, one, percent, result


def demo() -> Iterator[Claim]:
    found, ring = result("demo"), result("demo_ring")
    tasks, answers = found["successes"], found["answers"]
    assert tasks["reach"] == tasks["place"] == tasks["follow"]
    won, played = tasks["reach"]
    summary = result("demo_policy_bfloat16")["summary"]
    simulated = [summary[family]["normal"] for family in tasks]
    (episodes,) = {row["n"] for row in simulated}
    lowest = min(row["interval_95"][0] for row in simulated)
    figures = [won, played, *percent(won, played)]
    figures += [*(row["success"] * episodes for row in simulated), episodes]
    figures += [100 * lowest, 100, answers["right"], answers["asked"]]
    yield PERFORMANCE, "| success: reach, place, follow |", figures
    ages = [found["age_ms"]["p50"], found["age_ms"]["p99"]]
    ages += [ring["age_ms"]["p50"], ring["age_ms"]["p99"], *counted(ring)]
    yield PERFORMANCE, "| age from image stamp to published", ages
    yield PERFORMANCE, "| real-time factor of the simulator |", [found["real_time_factor"]["mean"]]
    hour = result("demo_hour")
    figures = [hour["episodes"], hour["age_ms"]["p50"], hour["age_ms"]["p99"]]
    for won, played in (hour["successes"][task] for task in ("reach", "place", "follow")):
        figures += [won, played, *percent(won, played)]
    growth = hour["memory_mb"]["growth_per_hour"]
    yield PERFORMANCE, "Over an hour of", [*figures, growth["trajectory"], growth["inference"]]


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
    both = ("our motion, blend", "full chunk, stamped at observation")
    styles = [one(result("handover")["styles"], style=style, from_desired=True) for style in both]
    yield PERFORMANCE, "| peak acceleration where", [row["acceleration"] for row in styles]


def timeline() -> Iterator[Claim]:
    found = result("timeline")
    hooks, named = found["hooks"], ("callback of an image", "micro-batch")
    figures = [found["events"]["span"]["p50"], found["threads"]["cpu_us"], *(hooks[n]["p50"] for n in named)]
    yield TRACE, "An event takes", figures
    yield TRACE, "Every process of a robot", [None]
