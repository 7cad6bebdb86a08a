"""Draw a run as one PNG: the motion of one episode, loop times, ages of commands, success.

Ticks under the traces mark hand-overs from one chunk's trajectory to the next; the commanded line
must not show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.sim.tasks import FAMILIES
from vla_accel_ros.tools.demo.measure import Traces
from vla_accel_ros.tools.demo.play import Board, Played

INK, DIM, GRID = "#1b1f24", "#6b7280", "#e3e6ea"
COLOURS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#475569")
GOOD, BAD, REST = "#059669", "#dc2626", "#e3e6ea"
STYLE = {
    "font.size": 10,
    "axes.edgecolor": DIM,
    "axes.labelcolor": DIM,
    "axes.titlecolor": INK,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "text.color": INK,
    "grid.color": GRID,
}
"""Of every picture, for matplotlib."""


@contextmanager
def drawn(path: Path, size: tuple[float, float], dpi: int) -> Iterator[Any]:
    """Give an empty figure of a size in inches, and write it as a PNG at the end. Raises OSError if the file
    cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=size, constrained_layout=True)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
        plt.close(figure)


def draw(path: Path, board: Board, figures: dict[str, Any], joints: Sequence[str]) -> None:
    """Write the PNG. figures: from summary.figures. joints: which to show."""
    with drawn(path, (13, 8.2), 120) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(1.45, 1.0))
        _motion(above, board.drawn, joints)
        loops, ages, success = below.subplots(1, 3, width_ratios=(1.15, 1.0, 1.0))
        draw_loops(loops, figures)
        draw_ages(ages, [age for p in board.played for age in p.ages_ms], figures["age_ms"])
        _success(success, figures)


def _motion(area: Any, played: Played | None, joints: Sequence[str]) -> None:
    axis = area.subplots()
    if played is None or played.traces is None:
        axis.set_title("no motion was recorded")
        return
    traces, begin = played.traces, int(played.traces.times_ns[0])
    time = draw_traces(axis, traces, joints)
    low, high = axis.get_ylim()
    line = 0.075 * (high - low)
    _says(axis, played, begin, low - 0.9 * line)
    ticks = (traces.handovers_ns - begin) * 1e-9
    axis.vlines(ticks, low - 1.85 * line, low - 1.4 * line, color=DIM, linewidth=0.8)
    for i, (at_ns, words) in enumerate(played.said):
        at = max((at_ns - begin) * 1e-9, 0.0)
        if i:
            axis.axvline(at, color=INK, linewidth=1.0, linestyle=":")
        axis.text(at, high + (len(played.said) - i) * line, f" “{words}”", va="top", style="italic")
    axis.set_ylim(low - 2 * line, high + (len(played.said) + 0.2) * line)
    axis.set_xlim(0.0, time[-1])
    ends = {name: float(traces.commanded[-1, traces.joints.index(name)]) for name in joints}
    name_lines(axis, ends, low, line)
    axis.text(1.006, low - 0.75 * line, "the model says", **_beside(axis, DIM))
    outcome = f"success in {played.time_s:.1f} s" if played.success else "missed"
    axis.set_title(
        f"episode {played.plan.index + 1}, {outcome}: commanded (thin) and measured (broad) joints"
    )
    axis.set(xlabel="time [s]", ylabel="position [rad]")
    axis.grid(True, axis="y")
    axis.set_axisbelow(True)


def draw_traces(axis: Any, traces: Traces, joints: Sequence[str]) -> np.ndarray:
    """Draw measured (broad) and commanded (thin) joints; return the seconds of their samples [M]."""
    time = (traces.times_ns - traces.times_ns[0]) * 1e-9
    for name, colour in zip(joints, cycle(COLOURS)):
        column = traces.joints.index(name)
        axis.plot(
            time, traces.measured[:, column], color=colour, alpha=0.3, linewidth=4.5, solid_capstyle="round"
        )
        axis.plot(time, traces.commanded[:, column], color=colour, linewidth=1.2)
    return time


def name_lines(axis: Any, ends: dict[str, float], low: float, line: float) -> None:
    """Label each joint's line at its right end, shifted where labels would overlap, and the hand-overs."""
    at = low
    for joint, colour in sorted(zip(ends, cycle(COLOURS)), key=lambda pair: ends[pair[0]]):
        at = max(ends[joint], at + 0.7 * line)
        axis.text(1.006, at, joint.replace("_", " "), **_beside(axis, colour))
    axis.text(1.006, low - 1.63 * line, "chunk hand-overs", **_beside(axis, DIM))


def _beside(axis: Any, colour: str) -> dict[str, Any]:
    return {"transform": axis.get_yaxis_transform(), "color": colour, "va": "center"}


def _says(axis: Any, played: Played, begin: int, at: float) -> None:
    """Draw a dot for every answer, and its words where they change."""
    last = ""
    for answer in played.answers:
        time = (answer.stamp_ns - begin) * 1e-9
        axis.plot(time, at, "o", color=GOOD if answer.right else BAD, markersize=4)
        if answer.text != last:
            axis.text(time, at + 0.02, f"  {answer.text}", va="bottom", fontsize=8, color=INK)
        last = answer.text


def draw_loops(axis: Any, figures: dict[str, Any]) -> None:
    """Draw the durations of loops as bars. figures: with loops_ms, rates_hz and deadline_misses by name."""
    names = [name for name, ms in figures["loops_ms"].items() if ms["p50"] is not None]
    for row, name in enumerate(names):
        ms, rate = figures["loops_ms"][name], figures["rates_hz"][name]
        missed = figures["deadline_misses"][name]
        axis.barh(row, ms["p99"], height=0.42, color=COLOURS[row], alpha=0.3)
        axis.barh(row, ms["p50"], height=0.42, color=COLOURS[row])
        axis.text(0, row - 0.32, f"{name}   {rate:.1f} Hz   {missed} late", va="bottom", fontsize=9)
        axis.text(
            ms["p99"], row, f"  {ms['p50']:.0f} / {ms['p99']:.0f} ms", va="center", color=DIM, fontsize=9
        )
    axis.set_ylim(len(names) - 0.5, -0.7)
    axis.margins(x=0.3)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_title("loops: p50 and p99 of a run")
    axis.set_xlabel("ms")


def draw_ages(axis: Any, ages: Sequence[float], summary: dict[str, Any]) -> None:
    """Draw a histogram of the ages of trajectories in milliseconds. summary: their measure.percentiles."""
    axis.set_title("age: image to published trajectory")
    axis.set(xlabel="ms", ylabel="trajectories")
    if not len(ages):
        return
    top = max(1.25 * summary["p99"], 10.0)
    axis.hist(np.clip(ages, 0, top), bins=np.linspace(0, top, 46), color=COLOURS[0])
    across = axis.get_xaxis_transform()
    for name, side in (("p50", "right"), ("p99", "left")):
        axis.axvline(summary[name], color=INK, linewidth=1.0, linestyle=":")
        axis.text(summary[name], 1.0, f" {name} {summary[name]:.0f} ", transform=across, va="top", ha=side)


def _success(axis: Any, figures: dict[str, Any]) -> None:
    rows = {family: figures["successes"][family] for family in FAMILIES if family in figures["successes"]}
    if figures["answers"]["asked"]:
        rows["answers"] = [figures["answers"]["right"], figures["answers"]["asked"]]
    for row, (name, (won, tried)) in enumerate(rows.items()):
        axis.barh(row, 100, height=0.42, color=REST)
        axis.barh(row, 100 * won / tried, height=0.42, color=GOOD if name != "answers" else COLOURS[0])
        axis.text(0, row - 0.32, f"{name}   {won} of {tried}", va="bottom", fontsize=9)
    axis.set_ylim(len(rows) - 0.5, -0.7)
    axis.set_xlim(0, 100)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_title("success by task, answers right")
    axis.set_xlabel("%")
