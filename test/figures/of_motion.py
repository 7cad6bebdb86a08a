"""Figures of motion: the demo, hand-over, noise, cameras, force, chunks through shared memory, horizons."""

from __future__ import annotations

from collections.abc import Iterator

from claims import PERFORMANCE, TRACE, Claim, one, result


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
    both = ("our motion, blend", "full chunk, stamped at observation")
    styles = [one(result("handover")["styles"], style=style, from_desired=True) for style in both]
    yield PERFORMANCE, "| peak acceleration where", [row["acceleration"] for row in styles]


def timeline() -> Iterator[Claim]:
    found = result("timeline")
    hooks, named = found["hooks"], ("callback of an image", "micro-batch")
    figures = [found["events"]["span"]["p50"], found["threads"]["cpu_us"], *(hooks[n]["p50"] for n in named)]
    yield TRACE, "An event takes", [*figures, found["memory_mb"], found["page_ms"]["p50"]]
    yield TRACE, "Every process of a robot", [None]
