"""Tables of fleets: policies, the scheduler beside its simulation, and processes that are killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from tables.forms import Line, one, result, table
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES

FLEET = 100
"""Of all that was simulated, the size of a closed fleet that the page shows."""
KILLED = {
    "scheduler": "the scheduler, with its replica",
    "inference": "a robot's `fleet_inference`",
    "trajectory": "a robot's `trajectory`",
    "vanishes": "a robot's `fleet_inference`, and its topics vanish for 1 to 9 s",
}


@table
def fleet_closed() -> Iterator[Line]:
    """A fleet of libero_pi05."""
    yield "policy, horizons", "P95", "stall", "average against fifo", "P95 against fifo"
    for row in result("fleet_sim")["closed"]:
        if row["robots"] == FLEET and row["policy"] in BUILT_IN[FLEET_RULES]:
            is_oracle = row["horizon"] == "dynamic"
            yield (
                f"{row['policy']}, {'dynamic (oracle)' if is_oracle else row['horizon']}",
                *(f"{row[name]['mean']:.0f} s" for name in ("p95", "stall")),
                *(_percent(row["against_fifo"][name]) for name in ("avg", "p95")),
            )


@table
def fleet_pairs() -> Iterator[Line]:
    """Average and P95 of Kairos' pairs against fifo with static horizons."""
    cases = (("kairos", "static"), ("aged_srpt", "static"), ("kairos", "dynamic"), ("aged_srpt", "dynamic"))
    document = result("fleet_pairs")
    heads = (
        f"{rule}, {'oracle' if horizon == 'dynamic' else horizon}: average, P95 [%]"
        for rule, horizon in cases
    )
    yield "pair", "measured", *heads
    for name in dict.fromkeys(row["pair"] for row in document["cases"]):
        rows = [one(document["cases"], pair=name, rule=rule, horizon=horizon) for rule, horizon in cases]
        profile = rows[0]["profile"]
        batch, ms = list(profile["ms"].items())[-1]
        changes = (
            ", ".join(_percent(row["against_fifo"][metric])[:-2] for metric in ("avg", "p95")) for row in rows
        )
        yield name, f"{ms:.1f} ms for {batch}, {profile['gpu'].split()[-1]}", *changes
    if document["absent"]:
        yield f"\nNot measured on a GPU yet, so without a row: {', '.join(document['absent'])}."


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
