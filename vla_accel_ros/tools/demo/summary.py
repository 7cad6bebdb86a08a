"""The demo's figures: the JSON, the line of an episode, and the closing table.

Success is reported with its counts and not judged. Ages and inference times cover every trajectory and chunk
of the run; loop times are what the loops reported once a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from vla_accel_ros.nodes.diagnostics import OK
from vla_accel_ros.nodes.messages.convert import stamp_ns
from vla_accel_ros.sim.tasks import FAMILIES
from vla_accel_ros.tools.demo import measure
from vla_accel_ros.tools.demo.play import Played

if TYPE_CHECKING:
    from vla_accel_msgs.msg import LoopStats
    from vla_accel_ros.nodes.clients.operator import Operator

JERK = "RMS of the third difference at 30 Hz over dt^3, arm joints, rad/s^3 (as in vla eval)"
AGE = "capture stamp of the image to the stamp of the published trajectory, both ROS time of this machine"
LOOPS = ("vision", "action", "language")


def line(played: Played, wanted: int | None) -> str:
    """Return one episode as one line."""
    number = f"{played.plan.index + 1}" + (f"/{wanted}" if wanted else "")
    how = "success" if played.success else "missed "
    notes = []
    if played.plan.first is not None:
        notes.append(f"changed from '{played.plan.first.instruction}'")
    if played.interrupted_by:
        notes.append(f"interrupted by {' and '.join(played.interrupted_by)}, not counted")
    p50 = measure.percentiles(played.ages_ms)["p50"]
    age = "-" if p50 is None else f"{p50:.0f} ms"
    tail = f"   ({'; '.join(notes)})" if notes else ""
    return (
        f"episode {number:<6} {played.plan.task.instruction:<38} {how} {played.time_s:5.1f} s   "
        f"answers {played.answers_right}/{len(played.answers)}   age p50 {age}"
        f"{tail}"
    )


def figures(
    played: Sequence[Played], operator: Operator, cpu: dict[str, float], memory: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Return the measured part of the JSON. cpu: share of a core by process. memory: of each process
    [MB], at times `at_s`."""
    counted = [p for p in played if p.counts]
    families = [family for family in FAMILIES if any(p.plan.task.family == family for p in counted)]
    won = {f: [p.success for p in counted if p.plan.task.family == f] for f in families}
    reports = [r for r in operator.reports if played and played[0].begun_ns <= stamp_ns(r.header.stamp)]
    factors = [p.real_time_factor for p in played if p.real_time_factor is not None]
    said = operator.diagnostics.get("inference: chunking")
    host = operator.diagnostics.get("inference: host")
    right, asked = sum(p.answers_right for p in played), sum(len(p.answers) for p in played)
    return {
        "episodes": len(played),
        "interrupted": len(played) - len(counted),
        "success_rate": {family: round(sum(wins) / len(wins), 4) for family, wins in won.items()},
        "successes": {family: [sum(wins), len(wins)] for family, wins in won.items()},
        "success_interval_95": {family: measure.wilson(sum(w), len(w)) for family, w in won.items()},
        "answers": {"right": right, "asked": asked, "rate": round(right / asked, 4) if asked else None},
        "rates_hz": rates_hz(played, operator, reports),
        "age_ms": {**measure.percentiles([age for p in played for age in p.ages_ms]), "definition": AGE},
        "inference_ms": measure.percentiles([ms for p in played for ms in p.inference_ms]),
        "loops_ms": {
            name: {
                "p50": _rounded([r.p50_s * 1e3 for r in reports if r.loop == name and r.runs]),
                "p99": _rounded([r.p99_s * 1e3 for r in reports if r.loop == name and r.runs]),
            }
            for name in LOOPS
        },
        "deadline_misses": {name: _growth([r.misses for r in reports if r.loop == name]) for name in LOOPS},
        "jerk": {**{kind: jerk(counted, kind) for kind in measure.KINDS}, "definition": JERK},
        "chunking": {v.key: v.value for v in said.values} if said is not None else {},
        "real_time_factor": {"mean": _rounded(factors), "min": round(min(factors), 4) if factors else None},
        "busy_host": host.message if host is not None and host.level != OK else "",
        "cpu_share": cpu,
        "memory_mb": {"samples": list(memory), "growth_per_hour": measure.growth_per_hour(memory)},
        "records": [record(p) for p in played],
    }


def jerk(played: Sequence[Played], kind: str) -> float | None:
    """Return the RMS jerk over all episodes [rad/s^3]."""
    value = measure.rms([p.jerk[kind] for p in played if p.jerk])
    return None if value is None else round(value, 1)


def rates_hz(
    played: Sequence[Played], operator: Operator, reports: Sequence[LoopStats]
) -> dict[str, float | None]:
    """Return rates: loops as they report, chunks and trajectories as they arrived, streams as inference
    received them."""
    rates = {name: _rounded([r.measured_hz for r in reports if r.loop == name]) for name in LOOPS}
    seconds = sum((p.ended_ns - p.begun_ns) * 1e-9 for p in played)
    if seconds:
        rates["chunks"] = round(sum(p.chunks for p in played) / seconds, 2)
        rates["trajectories"] = round(sum(len(p.ages_ms) for p in played) / seconds, 2)
    for item, status in operator.diagnostics.items():
        node, _, name = item.partition(": stream ")
        if node == "inference" and name:
            values = {pair.key: pair.value for pair in status.values}
            rates[name] = round(float(values["rate [Hz]"]), 2)
    return rates


def record(played: Played) -> dict[str, Any]:
    """Return one episode for the JSON; times are relative to its start."""
    return {
        "index": played.plan.index,
        "seed": played.plan.seed,
        "task": played.plan.task.family,
        "instruction": played.plan.task.instruction,
        "said": [
            {"at_s": round((at_ns - played.begun_ns) * 1e-9, 3), "instruction": words}
            for at_ns, words in played.said
        ],
        "success": played.success,
        "time_s": round(played.time_s, 3),
        "interrupted_by": list(played.interrupted_by),
        "answers": {"right": played.answers_right, "asked": len(played.answers)},
        "age_ms": measure.percentiles(played.ages_ms),
        "inference_ms": measure.percentiles(played.inference_ms),
        "jerk": {kind: jerk([played], kind) for kind in measure.KINDS},
        "real_time_factor": None if played.real_time_factor is None else round(played.real_time_factor, 4),
    }


def table(figures: dict[str, Any]) -> Table:
    """Return the closing summary."""
    closing = Table(title="summary", show_header=False, title_justify="left")
    closing.add_column(style="bold")
    closing.add_column()
    interrupted = f", {figures['interrupted']} interrupted" if figures["interrupted"] else ""
    closing.add_row("episodes", f"{figures['episodes']}{interrupted}")
    for family, (won, tried) in figures["successes"].items():
        low, high = (100 * bound for bound in figures["success_interval_95"][family])
        closing.add_row(f"success, {family}", f"{won} of {tried} ({low:.0f} to {high:.0f} %)")
    answers = figures["answers"]
    closing.add_row("answers right", f"{answers['right']} of {answers['asked']}")
    rates = figures["rates_hz"]
    closing.add_row("loop rates", "   ".join(f"{name} {_show(rates[name], 1)} Hz" for name in LOOPS))
    closing.add_row("deadline misses", "   ".join(f"{k} {v}" for k, v in figures["deadline_misses"].items()))
    age = figures["age_ms"]
    closing.add_row("age, image to trajectory", f"p50 {_show(age['p50'])} ms   p99 {_show(age['p99'])} ms")
    jerk = figures["jerk"]
    closing.add_row(
        "jerk", f"commanded {_show(jerk['commanded'])}   measured {_show(jerk['measured'])} rad/s^3"
    )
    closing.add_row("real-time factor", _show(figures["real_time_factor"]["mean"], 3))
    cpu = figures["cpu_share"].items()
    closing.add_row("CPU, of one core", "   ".join(f"{name} {100 * share:.0f} %" for name, share in cpu))
    if figures["busy_host"]:
        closing.add_row("host", figures["busy_host"])
    return closing


def _show(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _rounded(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 3) if len(values) else None


def _growth(counts: Sequence[int]) -> int:
    """Return the growth of a counter that restarts with its node."""
    return sum(max(0, later - earlier) if later >= earlier else later for earlier, later in pairwise(counts))
