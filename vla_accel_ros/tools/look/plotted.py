"""Draws a whole bag as one PNG: joints, hand-overs, stops with their reasons, and timing, as `vla demo` draws
a run."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.tools.demo import measure, picture
from vla_accel_ros.tools.look.recorded import Recorded
from vla_accel_ros.tools.look.scene import STATES, Scene

LISTED, LETTERS = 22, 78
ROWS = 3
"""Of instructions, so that those given soon after each other can be read."""


def write(path: Path, recorded: Recorded) -> None:
    """Draw it. Raises ValueError if the bag has no joint states; OSError if the file cannot be written."""
    scene = recorded.scene
    traces = traces_of(scene, recorded.last_ns)
    with picture.drawn(path, (13, 8.2), 120) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(1.45, 1.0))
        stops = stops_of(scene, traces, recorded.last_ns)
        _motion(above.subplots(), scene, traces, stops)
        loops, ages, reasons = below.subplots(1, 3, width_ratios=(1.0, 1.0, 1.3))
        picture.draw_loops(loops, loops_of(scene))
        received = ages_of(scene)
        picture.draw_ages(ages, received, measure.percentiles(received))
        _list(reasons, stops)


def traces_of(scene: Scene, until_ns: int) -> measure.Traces:
    """Return measured and commanded joints; commanded is nan where not all joints are commanded. Raises
    ValueError without joint states."""
    names = scene.contract.joint_names
    rows = [(stamp_ns, row) for stamp_ns, row in scene.joints.values if np.isfinite(row).all()]
    times, first = np.unique(np.array([stamp_ns for stamp_ns, _ in rows], np.int64), return_index=True)
    if len(times) < 2:
        raise ValueError(
            f"the bag has no joint states of {', '.join(names)}: record the robot's joint states"
        )
    measured = Trajectory(names, times, np.array([rows[i][1] for i in first]))
    sent = [trajectory for track in scene.commands.values() for trajectory in track.values]
    traces = measure.traces(sent, measured, names, until_ns)
    if traces is None:
        grid = np.arange(times[0], times[-1], round(1e9 / measure.TRACE_HZ), dtype=np.int64)
        positions = measured.sample(grid)[0]
        traces = measure.Traces(
            names, grid, np.full_like(positions, np.nan), positions, np.empty(0, np.int64)
        )
    return traces


@dataclass
class Stop:
    """A time, in seconds, in which chunks did not move the robot, with all its states and reasons."""

    from_s: float
    to_s: float
    words: list[str]


def stops_of(scene: Scene, traces: measure.Traces, until_ns: int) -> list[Stop]:
    """Return every stop in order."""
    begin_ns = int(traces.times_ns[0])
    times, motions = scene.motions.times_ns, scene.motions.values
    stops: list[Stop] = []
    running = True
    for time_ns, end_ns, motion in zip(times, [*times[1:], until_ns], motions):
        state = STATES.get(motion.state, str(motion.state))
        if state != "running" and end_ns > begin_ns:
            if running:
                stops.append(Stop(max(0.0, (time_ns - begin_ns) * 1e-9), 0.0, []))
            stops[-1].to_s = (end_ns - begin_ns) * 1e-9
            stops[-1].words.append(f"{state}: {'; '.join(motion.reasons) or 'settling'}")
            running = False
        running = running or state == "running"
    return stops


def ages_of(scene: Scene) -> list[float]:
    """Return the milliseconds from image to trajectory, of the controller with most joints."""
    track = max(scene.commands.items(), key=lambda item: _joints(scene, item[0]))[1]
    sent = [(time_ns, trajectory.start_ns) for time_ns, trajectory in zip(track.times_ns, track.values)]
    return measure.ages_ms([(chunk.arrived_ns, chunk.stamp_ns) for chunk in scene.chunks.values], sent)


def loops_of(scene: Scene) -> dict[str, Any]:
    """Return durations, rates and missed deadlines of the loops, as `draw_loops` takes them."""
    figures: dict[str, dict[str, Any]] = {"loops_ms": {}, "rates_hz": {}, "deadline_misses": {}}
    for name, track in scene.loops.items():
        running = [report for report in track.values if report.runs]
        if not running:
            continue
        p50, p99, hz = (
            float(np.mean([getattr(report, field) for report in running]))
            for field in ("p50_s", "p99_s", "measured_hz")
        )
        misses = np.diff([report.misses for report in running]).clip(0).sum()
        figures["loops_ms"][name] = {"p50": 1e3 * p50, "p99": 1e3 * p99}
        figures["rates_hz"][name], figures["deadline_misses"][name] = hz, int(misses)
    return figures


def _joints(scene: Scene, topic: str) -> int:
    return sum(len(c.joints) for c in scene.contract.controllers if c.topic == topic)


def _motion(axis: Any, scene: Scene, traces: measure.Traces, stops: list[Stop]) -> None:
    time = picture.draw_traces(axis, traces, traces.joints)
    begin_ns = int(traces.times_ns[0])
    low, high = axis.get_ylim()
    line = 0.075 * (high - low)
    axis.vlines(
        (traces.handovers_ns - begin_ns) * 1e-9, low - 1.85 * line, low - 1.4 * line, color=picture.DIM
    )
    for number, stop in enumerate(stops, 1):
        axis.axvspan(stop.from_s, stop.to_s, color=picture.BAD, alpha=0.12, linewidth=0)
        axis.text(stop.from_s, low - 0.9 * line, f" {number}", va="center", color=picture.BAD)
    free_s = [0.0] * ROWS
    for i, (time_ns, words) in enumerate(zip(scene.told.times_ns, scene.told.values)):
        told_s = max((time_ns - begin_ns) * 1e-9, 0.0)
        axis.axvline(told_s, color=picture.INK, linewidth=1.0, linestyle=":")
        if told_s >= free_s[i % ROWS]:
            axis.text(told_s, high + (i % ROWS + 1) * line, f" “{words}”", va="top", style="italic")
            free_s[i % ROWS] = told_s + 0.25 * time[-1]
    axis.set_ylim(low - 2 * line, high + (ROWS + 0.2) * line)
    axis.set_xlim(0.0, time[-1])
    ends = np.where(np.isfinite(traces.commanded[-1]), traces.commanded[-1], traces.measured[-1])
    picture.name_lines(axis, dict(zip(traces.joints, map(float, ends))), low, line)
    axis.set_title(f"{scene.contract.robot}: commanded (thin) and measured (broad) joints, stops shaded")
    axis.set(xlabel="time [s]", ylabel="position [rad]")
    axis.grid(True, axis="y")
    axis.set_axisbelow(True)


def _list(axis: Any, stops: list[Stop]) -> None:
    """List the stops by their numbers in the picture."""
    lines = []
    for number, stop in enumerate(stops, 1):
        reasons = ", then ".join(dict.fromkeys(stop.words))
        text = f"{number}  at {stop.from_s:.1f} s, for {stop.to_s - stop.from_s:.1f} s  {reasons}"
        lines += textwrap.wrap(text, LETTERS, subsequent_indent="    ", max_lines=2)
    if len(lines) > LISTED:
        lines = [*lines[: LISTED - 1], f"and more: {len(stops)} stops in all"]
    axis.text(0.0, 1.0, "\n".join(lines) or "none", va="top", fontsize=8, transform=axis.transAxes)
    axis.set_title("stops")
    axis.set_axis_off()
