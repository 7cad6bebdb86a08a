"""Tables of fleets: policies, the scheduler beside its simulation, and processes that are killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from tables.forms import Line, result, table

CHANGES = ("avg", "p95", "first_wait", "stall")
BURSTS, FLEET = ("libero_pi05", "mixed_fleet"), 100
"""Of all that was simulated, the workloads and the size of a closed fleet that the page shows."""
ORACLES = ("clairvoyant", "known")
"""Policies that know what cannot be known. So do dynamic horizons, which are drawn at no cost in success."""
KILLED = {
    "scheduler": "the scheduler, with its replica",
    "inference": "a robot's `fleet_inference`",
    "trajectory": "a robot's `trajectory`",
    "vanishes": "a robot's `fleet_inference`, and its topics vanish for 1 to 9 s",
}
PAPER = "-41.0 to -42.8 %"
"""Kairos, section 5.3, offline serving: the average of a hundred robots over both baselines."""


@table
def fleet_overload() -> Iterator[Line]:
    """Changes against fifo at the highest load, static horizons."""
    document = result("fleet_sim")
    yield "workload", "tasks (a robot)", "policy", "average", "P95", "first chunk", "stall"
    tops = {row["workload"]: row["load"] for row in document["table_2"]}
    for row in document["open"]:
        shown = row["workload"] in BURSTS and row["load"] == tops[row["workload"]]
        if shown and row["horizon"] == "static" and row["policy"] != "fifo":
            tasks = f"{row['tasks']['mean']:.0f} ({row['tasks_per_robot']['mean']:.0f})"
            policy = f"{row['policy']} (oracle)" if row["policy"] in ORACLES else row["policy"]
            yield (
                row["workload"],
                tasks,
                policy,
                *(_percent(row["against_fifo"][metric]) for metric in CHANGES),
            )


@table
def fleet_closed() -> Iterator[Line]:
    """A fleet of libero_pi05."""
    yield (
        "robots", "tasks a robot", "policy", "horizons", "average", "P95", "first chunk", "stall",
        "average against fifo", "P95 against fifo", "P95, half as long", "Little's law", "paper: average",
    )  # fmt: skip
    for row in result("fleet_sim")["closed"]:
        if row["robots"] == FLEET:
            is_oracle = row["horizon"] == "dynamic"
            yield (
                str(FLEET), str(row["tasks_per_robot"]), row["policy"],
                "dynamic (oracle)" if is_oracle else row["horizon"],
                *(f"{row[name]['mean']:.1f} s" for name in CHANGES),
                *(_percent(row["against_fifo"][name]) for name in ("avg", "p95")),
                _percent(row["half_as_long"]["p95"]), f"{100 * (row['little']['mean'] - 1.0):+.1f} %",
                PAPER if is_oracle else "-",
            )  # fmt: skip


@table
def fleet_agreement() -> Iterator[Line]:
    """The simulator beside the node's scheduler, at the rate of decisions of an engine."""
    yield (
        "policy", "scheduler: average", "P95", "against fifo", "P95", "simulated: against fifo", "P95",
        "points apart", "P95",
    )  # fmt: skip
    for row in result("fleet_agreement")["rows"]:
        changes = (
            f"{row['against_fifo'][who][name]:+.1f} %"
            for who in ("node", "simulated") for name in ("avg", "p95")
        )  # fmt: skip
        figures = (f"{row['node'][name]:.2f} s" for name in ("avg", "p95"))
        yield row["policy"], *figures, *changes, *(f"{row['apart'][name]:+.1f}" for name in ("avg", "p95"))


def _percent(change: Mapping[str, Any]) -> str:
    half = f" ± {change['half']:.0f}" if "half" in change else ""
    return f"{change['mean']:+.0f}{half} %"


@table
def fleet_chaos() -> Iterator[Line]:
    """The whole run, and by what was killed."""
    run = result("fleet_chaos")
    robots, network, left = run["robots_judged"].values(), run["network"], run["left"]
    chunks, moved_s = (sum(robot[field] for robot in robots) for field in ("chunks", "moved_s"))
    mixed_up, broken, refused = (
        sum(len(r[field]) for r in robots) for field in ("wrong", "broken", "rejected")
    )
    memory = left["shared_memory"]
    sentences = (
        f"{run['kills']} kills in {run['seconds'] / 60:.0f} minutes, seed {run['seed']}, "
        f"{run['robots']} robots, two cores with a load of {run['load']} in the end. "
        f"{chunks} chunks, {moved_s:.0f} s of motion; of {network['messages']} messages "
        f"{network['late']} late, {network['doubled']} doubled, {network['overtaken']} overtaken, "
        f"{network['lost']} lost. Chunks or commands of another robot, or too old: {mixed_up}. "
        f"Limits broken, or motion without a young chunk: {broken}. "
        f"Commands that a controller refused: {refused}. "
        f"In the end slots in use: {left['slots_in_use']}; strangers in the graph: "
        f"{len(left['strangers_in_the_graph'])}; shared memory of killed processes: "
        f"{memory['mb']} MB in {memory['files']} files."
    )
    yield from wrap(sentences, 118)
    yield ""
    yield (
        "killed", "times", "while it asked, or was asked", "ready again, p50 / max [s]",
        "goes on after that, p50 / p99 / max [s]", "moves on by what it had [s]", "silent", "did not go on",
    )  # fmt: skip
    for kind, row in run["by_kind"].items():
        ready, goes = row["ready_s"], row["goes_on_s"]
        yield (
            KILLED[kind], *(str(row[quantity]) for quantity in ("kills", "mid_request")),
            f"{ready['p50']} / {ready['max']}", f"{goes['p50']} / {goes['p99']} / {goes['max']}",
            *(str(row[quantity]) for quantity in ("moves_after_s", "silent", "stuck")),
        )  # fmt: skip
