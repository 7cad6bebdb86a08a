"""Tables of fleets: policies, the scheduler beside its simulation, and processes that are killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from tables.forms import Line, result, table

CHANGES = ("avg", "p95", "first_wait", "stall")
BURST, FLEET = "libero_pi05", 100
"""Of all that was simulated, the workload and the size of a closed fleet that the page shows."""
ORACLES = ("clairvoyant", "known")
"""Policies that know what cannot be known. So do dynamic horizons, which are drawn at no cost in success."""
KILLED = {
    "scheduler": "the scheduler, with its replica",
    "inference": "a robot's `fleet_inference`",
    "trajectory": "a robot's `trajectory`",
    "vanishes": "a robot's `fleet_inference`, and its topics vanish for 1 to 9 s",
}


@table
def fleet_overload() -> Iterator[Line]:
    """Changes against fifo at the highest load, static horizons."""
    document = result("fleet_sim")
    yield "policy", "average", "P95", "first chunk", "stall"
    tops = {row["workload"]: row["load"] for row in document["table_2"]}
    for row in document["open"]:
        shown = row["workload"] == BURST and row["load"] == tops[BURST]
        if shown and row["horizon"] == "static" and row["policy"] != "fifo":
            policy = f"{row['policy']} (oracle)" if row["policy"] in ORACLES else row["policy"]
            yield policy, *(_percent(row["against_fifo"][metric]) for metric in CHANGES)


@table
def fleet_closed() -> Iterator[Line]:
    """A fleet of libero_pi05."""
    yield (
        "policy, horizons", "average", "P95", "first chunk", "stall", "average against fifo",
        "P95 against fifo",
    )  # fmt: skip
    for row in result("fleet_sim")["closed"]:
        if row["robots"] == FLEET:
            is_oracle = row["horizon"] == "dynamic"
            yield (
                f"{row['policy']}, {'dynamic (oracle)' if is_oracle else row['horizon']}",
                *(f"{row[name]['mean']:.1f} s" for name in CHANGES),
                *(_percent(row["against_fifo"][name]) for name in ("avg", "p95")),
            )  # fmt: skip


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
