"""Tables of motion: hand-over, noise, force, cameras, chunks through shared memory, horizons, faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tables.forms import Line, between, cells, one, result, table, won

STYLES = {
    "full chunk, stamped at observation": "whole chunk, stamped at its observation",
    "single point per tick, due a step later": "one point per tick, due a step later",
    "+ velocities": "past dropped, velocities given",
    "+ sender blends over 200 ms": "past dropped, velocities, the sender blends over 200 ms",
    "our motion, async": "this package, mode `async`",
    "our motion, blend": "this package, mode `blend` (the default)",
}


@table
def handover_styles() -> Iterator[Line]:
    """Peak acceleration, by the controller's parameter open_loop_control."""
    yield "hand-over", "true", "false"
    for number, (style, named) in enumerate(STYLES.items()):
        peaks = [
            f"{one(result('handover')['styles'], style=style, from_desired=on)['acceleration']:,.0f}"
            for on in (True, False)
        ]
        yield named, peaks[0] + " rad/s^2" * (number == 0), peaks[1]


@table
def force_reactions() -> Iterator[Line]:
    """Of the trajectory node."""
    yield (
        "source, `force_priority`", "command p50 ms", "p99", "max", "later than 2 ms, %", "reaction p50 ms",
        "p99",
    )  # fmt: skip
    for row in result("force")["sources"]:
        yield (
            f"{row['source']}, {row['force_priority']}",
            *cells(
                row, "command_p50_ms:.2f", "command_p99_ms:.2f", "command_max_ms:.1f",
                "commands_late_percent:.2f", "reaction_p50_ms:.1f", "reaction_p99_ms:.1f",
            ),
        )  # fmt: skip


@table
def cameras() -> Iterator[Line]:
    """Frames a second, share of a core, age."""
    yield "transport", "640x480", "1280x720"
    for named, transport in (("ring", "ring"), ("raw images", "raw"), ("JPEG", "compressed")):
        rows = [one(result("ingest")["rows"], transport=transport, width=width) for width in (640, 1280)]
        yield (
            named,
            *(
                f"{row['hz']:.1f}, {row['cpu']:.1f} %, {row['age_ms']['p50']:.1f} / "
                f"{row['age_ms']['p99']:.1f} ms"
                for row in rows
            ),
        )


@table
def horizon_signals() -> Iterator[Line]:
    """Spearman's correlation of signals with errors."""
    yield (
        "signal", "later chunk", "mean of ten",
    )  # fmt: skip
    rows = result("horizon")["signals"]["correlations"]
    for signal in ("update_ratio", "spread"):
        pair = [one(rows, signal=signal, error=error) for error in ("later", "mean")]
        figures = [row["overall"] for row in pair]
        yield signal, *(between({**figure, "median": figure["rho"]}, "+.2f") for figure in figures)


@table
def horizon_front() -> Iterator[Line]:
    """Success against load."""
    yield "target, horizon", "success", "actions a chunk", "chunks/s", "time s", "jerk rad/s^3"
    shown = ("static:12", "static:24", "all", "update_ratio:0.02")
    for row in result("horizon")["front"]["rows"]:
        if row["condition"] == "moved" and row["horizon"] in shown:
            yield (
                f"moved, `{row['horizon']}`", won(row),
                *cells(row, "actions:.1f", "chunks_per_s:.2f"),
                between(row["time_s"], ".2f"), between(row["jerk"], ".0f"),
            )  # fmt: skip


@table
def chunk_port_whole() -> Iterator[Line]:
    """Three processes, and where they ran."""
    yield (
        "three processes", "chunks/s written", "followed", "commands/s", "from write to follow p50, p99 [ms]",
        "between commands p50, p99, max [ms]", "CPU of `trajectory`",
    )  # fmt: skip
    document = result("chunk_port")
    for row in document["whole"]:
        yield (
            f"whole, {row['joints']} joints", *cells(row, "chunks_hz", "followed_hz", "commands_hz"),
            ", ".join(cells(row, "write_to_follow_p50_ms", "write_to_follow_p99_ms")),
            ", ".join(cells(row, "interval_p50_ms", "interval_p99_ms", "interval_max_ms")),
            f"{row['cpu_percent']} %",
        )  # fmt: skip
    load_before, load_after = (document[f"load_{when}"][0] for when in ("before", "after"))
    yield ""
    yield (
        f"Load {load_before:.2f} before and {load_after:.2f} after, on {document['machine']['cores']} cores "
        f"({document['machine']['cpu']}, {document['date'][:10]})."
    )


@table
def faults() -> Iterable[Line]:
    """Each fault, measured repeatedly."""
    from faulting.cases import CASES
    from faulting.measure import Row
    from faulting.table import lines

    measured = {fault["name"]: [Row(**row) for row in fault["runs"]] for fault in result("faults")["faults"]}
    return lines(measured, {case.name: case.runs for case in CASES})
