"""What is left when all the kills are over: memory, descriptors, seats, slots, the graph, shared memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from chaos.fleet import Fleet
from chaos.network import HEARD, TOLD
from chaos.processes import abandoned, segments

SETTLED_S = 20.0
"""Of a life: what is loaded and grows to its size."""
LONG_S = 60.0
LEASE_S = 40.0
"""Until what was killed has left the graph: Fast DDS's lease is 20 s."""


def lives(fleet: Fleet) -> list[dict[str, Any]]:
    """Of each process that lived long: how its memory (MB a minute), threads and descriptors grew."""
    found = []
    for name, process in fleet.processes.items():
        usage = np.array(process.usage)
        if not len(usage):
            continue
        for start in np.unique(usage[:, 0]):
            life = usage[usage[:, 0] == start][:, 1:]
            life = life[life[:, 0] >= life[0, 0] + SETTLED_S]
            if len(life) < 3 or life[-1, 0] - life[0, 0] < LONG_S:
                continue
            minutes = (life[:, 0] - life[0, 0]) / 60
            found.append(
                {
                    "process": name,
                    "minutes": round(float(minutes[-1]), 1),
                    "rss_mb": [round(float(life[i, 1]), 1) for i in (0, -1)],
                    "rss_mb_per_minute": round(float(np.polyfit(minutes, life[:, 1], 1)[0]), 3),
                    "threads": [int(life[i, 2]) for i in (0, -1)],
                    "descriptors": [int(life[i, 3]) for i in (0, -1)],
                }
            )
    return found


def rest(fleet: Fleet) -> dict[str, Any]:
    """After the robots were told to do nothing: what the scheduler still holds, and who is in the graph."""
    fleet.instruct("")
    fleet.until(lambda: idle(fleet) and not _strangers(fleet), LEASE_S)
    queue, replica = fleet.diagnostics.get("queue", {}), fleet.diagnostics.get("replica local", {})
    return {
        "waiting": queue.get("waiting"),
        "robots": queue.get("message"),
        "room": replica.get("room"),
        "most": replica.get("most"),
        "slots_in_use": _slots(fleet),
        "idle": idle(fleet),
        "strangers_in_the_graph": _strangers(fleet),
        "shared_memory": _shared_memory(fleet),
    }


def _shared_memory(fleet: Fleet) -> dict[str, Any]:
    """Of processes that were killed."""
    files = abandoned(set().union(*(process.left for process in fleet.processes.values())))
    return {
        "files": len(files),
        "mb": round(sum(files.values()) / 2**20, 1),
        "segments_of_this_package": sum("robot" in name for name in segments()),
    }


def idle(fleet: Fleet) -> bool:
    """Whether the scheduler says that nothing waits, nothing is computed and no slot is in use."""
    queue, replica = fleet.diagnostics.get("queue", {}), fleet.diagnostics.get("replica local", {})
    whole = replica.get("room") == replica.get("most") is not None
    return whole and queue.get("waiting") == "0" and _slots(fleet) == "0"


def _slots(fleet: Fleet) -> str | None:
    return fleet.diagnostics.get("engine", {}).get("slots in use")


def _strangers(fleet: Fleet) -> list[str]:
    """Nodes and ends of the fleet's topics that nobody living has."""
    names = Counter(
        f"{namespace.rstrip('/')}/{name}" for name, namespace in fleet.node.get_node_names_and_namespaces()
    )
    kinds = ("drivers", "inference", "trajectory")
    due = Counter(f"{robot}/{kind}" for robot in fleet.robots for kind in kinds)
    due.update(["/network", "/fleet_scheduler"])
    found = [f"node {name}" for name in (names - due).elements()]
    for robot in fleet.robots:
        for name in (*TOLD, *HEARD):
            for ends, what in (
                (fleet.node.count_publishers(f"{robot}/fleet/{name}"), "publisher"),
                (fleet.node.count_subscribers(f"{robot}/fleet/{name}"), "subscription"),
            ):
                found += [f"{what} of {robot}/fleet/{name}"] * max(0, ends - 1)
    return found
