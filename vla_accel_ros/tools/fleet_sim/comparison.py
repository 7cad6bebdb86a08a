"""Simulated runs of several rules and loads as a table, and as a picture of latency against load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PERCENTILES = {"p50": "-", "p95": "--"}
"""Line styles of what a picture shows."""


def compared(runs: Sequence[dict[str, Any]]) -> str:
    """Return a line for each run. A run that is not stationary is marked: it changes with the tasks."""
    name = _amount(runs)
    columns = "".join(f" {column:>8}" for column in (name, "avg", "p50", "p95", "p99"))
    lines = ["simulated, latency of a task [s]", f"{'rule':>16}{columns}"]
    for run in runs:
        amount = "-" if run[name] is None else f"{run[name]:g}"
        latencies = " ".join(f"{run['latency_s'][key]:8.2f}" for key in ("avg", "p50", "p95", "p99"))
        lines.append(
            f"{run['policy']:>16} {amount:>8} {latencies}{'' if run['stationary'] else '  not stationary'}"
        )
    return "\n".join(lines)


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw median and P95 of the latency of a task against the load or the robots; circles are stationary.
    Raises OSError if the file cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    name = _amount(runs)
    figure, axes = pyplot.subplots(figsize=(8.0, 5.0))
    for number, rule in enumerate(dict.fromkeys(run["policy"] for run in runs)):
        of_rule = sorted((run for run in runs if run["policy"] == rule), key=lambda run: run[name] or 0.0)
        for percentile, style in _PERCENTILES.items():
            amounts = [run[name] or 1.0 for run in of_rule]
            latencies_s = [run["latency_s"][percentile] for run in of_rule]
            axes.plot(amounts, latencies_s, style, color=f"C{number}", label=f"{rule}, {percentile}")
            for run, amount, latency_s in zip(of_rule, amounts, latencies_s):
                axes.plot(amount, latency_s, "o" if run["stationary"] else "x", color=f"C{number}")
    title = f"{runs[0]['workload']}, simulated; x: not stationary"
    axes.set(xlabel=name, ylabel="latency of a task [s]", yscale="log", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _amount(runs: Sequence[dict[str, Any]]) -> str:
    """The name of what the runs differ in besides the rule."""
    return "load" if runs[0]["robots"] is None else "robots"
