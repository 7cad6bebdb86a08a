"""Makes the page's tables from the JSON of a run."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Any

BEGIN, END = "<!-- begin: python bench/fleet_chaos.py -->", "<!-- end -->"
WIDTH = 118
TITLES = {
    "scheduler": "the scheduler, with its replica",
    "inference": "a robot's `fleet_inference`",
    "trajectory": "a robot's `trajectory`",
    "vanishes": "a robot's `fleet_inference`, and its topics vanish for 1 to 9 s",
}
HEAD = (
    "| killed | times | while it asked, or was asked | ready again, p50 / max [s] "
    "| goes on after that, p50 / p99 / max [s] | moves on by what it had [s] | silent "
    "| did not go on |",
    "|---|---|---|---|---|---|---|---|",
)


def lines(found: dict[str, Any]) -> list[str]:
    """Return the summary and the table by what was killed."""
    return [
        *wrap(_run(found), WIDTH),
        "",
        *HEAD,
        *(_row(TITLES[kind], row) for kind, row in found["by_kind"].items()),
    ]


def write(page: Path, found: dict[str, Any]) -> None:
    """Replace the page's tables."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join((f"{before}{BEGIN}", *lines(found), f"{END}{after}")))


def _run(found: dict[str, Any]) -> str:
    robots, network, left = found["robots_judged"].values(), found["network"], found["left"]
    chunks, moved_s = (sum(robot[what] for robot in robots) for what in ("chunks", "moved_s"))
    wrong, broken, refused = (sum(len(r[what]) for r in robots) for what in ("wrong", "broken", "rejected"))
    memory = left["shared_memory"]
    sentences = (
        f"{found['kills']} kills in {found['seconds'] / 60:.0f} minutes, seed {found['seed']}, "
        f"{found['robots']} robots, two cores with a load of {found['load']} in the end.",
        f"{chunks} chunks, {moved_s:.0f} s of motion; of {network['messages']} messages",
        f"{network['late']} late, {network['doubled']} doubled, {network['overtaken']} overtaken,",
        f"{network['lost']} lost. Chunks or commands of another robot, or too old: {wrong}.",
        f"Limits broken, or motion without a young chunk: {broken}.",
        f"Commands that a controller refused: {refused}.",
        f"In the end slots in use: {left['slots_in_use']}; strangers in the graph:",
        f"{len(left['strangers_in_the_graph'])}; shared memory of killed processes:",
        f"{memory['mb']} MB in {memory['files']} files.",
    )
    return " ".join(sentences)


def _row(title: str, row: dict[str, Any]) -> str:
    ready, goes = row["ready_s"], row["goes_on_s"]
    cells = (
        title,
        str(row["kills"]),
        str(row["mid_request"]),
        f"{ready['p50']} / {ready['max']}",
        f"{goes['p50']} / {goes['p99']} / {goes['max']}",
        str(row["moves_after_s"]),
        str(row["silent"]),
        str(row["stuck"]),
    )
    return f"| {' | '.join(cells)} |"
