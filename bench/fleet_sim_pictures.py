"""Draws the pictures of docs/lab/fleet_sim.md: latency against load, and the frontier of mean and P95."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = {
    "fifo": "black", "las": "tab:brown", "kairos": "tab:blue", "oldest": "tab:cyan", "gfair": "tab:orange",
    "aged_remaining": "tab:red", "aged_srpt": "tab:green", "clairvoyant": "tab:gray",
}  # fmt: skip
NAMES = {"avg": "average", "p95": "P95"}
Rows = list[Mapping[str, Any]]


def draw(document: Mapping[str, Any], folder: Path) -> None:
    """Writes fleet_sim_load.svg and fleet_sim_frontier.svg there."""
    plt.rcParams.update({"svg.hashsalt": "fleet", "svg.fonttype": "none", "font.size": 8})
    rows = [row for row in document["open"] if row["horizon"] == "static"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    against_load(rows, workloads, folder / "fleet_sim_load.svg")
    frontier(rows, workloads, folder / "fleet_sim_frontier.svg")


def against_load(rows: Rows, workloads: list[str], file: Path) -> None:
    """A column for each workload: average above, P95 below; bars are intervals at 95 %."""
    figure, axes = plt.subplots(2, len(workloads), figsize=(12.0, 4.6), sharex="col")
    for column, workload in enumerate(workloads):
        for line, metric in enumerate(NAMES):
            axis = axes[line][column]
            for policy in COLOURS:
                mine = [r for r in rows if (r["workload"], r["policy"]) == (workload, policy)]
                if len(mine) > 1:
                    mine.sort(key=lambda row: row["load"])
                    loads = [row["load"] for row in mine]
                    means, halves = ([row[metric][key] for row in mine] for key in ("mean", "half"))
                    axis.errorbar(
                        loads, means, halves, label=policy, color=COLOURS[policy], lw=1, elinewidth=0.7
                    )
            axis.set_ylim(bottom=0)
            if not line:
                axis.set_title(workload)
            if not column:
                axis.set_ylabel(f"{NAMES[metric]} of task latency [s]")
        axes[1][column].set_xlabel("load")
    axes[0][0].legend(fontsize=7)
    _save(figure, file)


def frontier(rows: Rows, workloads: list[str], file: Path) -> None:
    """At the highest load, changes against fifo: down and left is better in both."""
    figure, axes = plt.subplots(1, len(workloads), figsize=(12.0, 2.8))
    for axis, workload in zip(axes, workloads, strict=True):
        top = max(row["load"] for row in rows if row["workload"] == workload)
        for row in rows:
            if (row["workload"], row["load"]) == (workload, top):
                x, y = (row["against_fifo"][metric] for metric in NAMES)
                axis.errorbar(
                    x["mean"], y["mean"], y["half"], x["half"], "o", ms=3, lw=0.8,
                    color=COLOURS[row["policy"]], label=row["policy"],
                )  # fmt: skip
        axis.axhline(0, color="gray", lw=0.5)
        axis.axvline(0, color="gray", lw=0.5)
        axis.set_title(f"{workload}, load {top:g}")
        axis.set_xlabel("average against fifo [%]")
    axes[0].set_ylabel("P95 against fifo [%]")
    axes[-1].legend(fontsize=6)
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
