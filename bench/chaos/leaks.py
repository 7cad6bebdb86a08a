"""What remains after all kills: memory, descriptors, seats, slots, the graph, shared memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from chaos.fleet import Fleet
from chaos.network import HEARD, TOLD
from chaos.processes import abandoned, segments
from chaos.run import ready_ns

FILES_A_KILL, MB_A_KILL = 3, 0.6
"""What SIGKILL may leave in /dev/shm: a segment of Fast DDS of half a MB with its lock, and a port."""
MOST = {
    "own_mb": (12.0, 0.1, 0.2),
    "mapped_mb": (3.0, 0.6, 0.0),
    "threads": (2, 0.0, 0.0),
    "descriptors": (4, 0.0, 0.0),
}
"""By how much each may grow in a life: at all, for each kill of another, and for each minute. The
timeline of a process, which fills in its first minutes, is 9 MB of it; Fast DDS keeps the segments of those
that were killed mapped."""
SETTLED_S = 15.0
"""Of a life: what is loaded and grows to its size."""
LONG_S = 30.0
LEASE_S = 40.0
"""Until what was killed has left the graph: Fast DDS's lease is 20 s."""


def lives(fleet: Fleet, settled_s: float = SETTLED_S, long_s: float = LONG_S) -> list[dict[str, Any]]:
    """Of each process that lived long_s more than settled_s after it was ready: how its own memory grew (MB a
    minute), what it has mapped, threads and descriptors, and how often others were killed meanwhile."""
    holders = []
    killed_s = sorted(at_ns * 1e-9 for process in fleet.processes.values() for at_ns in process.killed_ns)
    for name, process in fleet.processes.items():
        for number in range(1, process.starts + 1):
            ready = ready_ns(fleet, name, process.starts_ns[number - 1])
            since_s = math.inf if ready is None else ready * 1e-9 + settled_s
            life = [used for used in process.usage if used.life == number and used.at_s >= since_s]
            if len(life) < 3 or life[-1].at_s - life[0].at_s < long_s:
                continue
            first, last = life[0], life[-1]
            minutes = [(used.at_s - first.at_s) / 60 for used in life]
            slope = np.polyfit(minutes, [used.own_mb for used in life], 1)[0]
            holders.append(
                {
                    "process": name,
                    "minutes": round(minutes[-1], 1),
                    "kills": sum(first.at_s <= at_s <= last.at_s for at_s in killed_s),
                    "own_mb": [round(used.own_mb, 1) for used in (first, last)],
                    "own_mb_per_minute": round(float(slope), 3),
                    "mapped_mb": [round(used.shared_mb, 1) for used in (first, last)],
                    "threads": [used.threads for used in (first, last)],
                    "descriptors": [used.descriptors for used in (first, last)],
                }
            )
    return holders


def faults(left: dict[str, Any], lives: Sequence[dict[str, Any]], kills: int) -> list[str]:
    """Return what leaked, one sentence each. left: result of `rest`; lives: result of `lives`."""
    sentences = []
    if not left["idle"]:
        seats = f"room {left['room']} of {left['most']}, slots in use {left['slots_in_use']}"
        sentences.append(f"the scheduler is not idle: {left['waiting']} requests wait, {seats}")
    sentences += [f"{stranger} is still in the graph" for stranger in left["strangers_in_the_graph"]]
    memory = left["shared_memory"]
    if memory["files"] > FILES_A_KILL * kills or memory["mb"] > MB_A_KILL * kills:
        sentences.append(f"{kills} kills left {memory['files']} files of {memory['mb']} MB in /dev/shm")
    if memory["segments_of_this_package"]:
        sentences.append(
            f"{memory['segments_of_this_package']} segments of this package have no writer any more"
        )
    for life in lives:
        for quantity, bounds in MOST.items():
            first, last = life[quantity]
            grew, allowed = last - first, bounds[0] + bounds[1] * life["kills"] + bounds[2] * life["minutes"]
            if grew > allowed:
                which = f"{life['process']}, {life['minutes']} minutes and {life['kills']} kills of others"
                sentences.append(
                    f"{which}: {quantity} from {first} to {last}, at most {allowed:.1f} more are allowed"
                )
    return sentences


def rest(fleet: Fleet, patience_s: float = LEASE_S) -> dict[str, Any]:
    """After the robots were told to do nothing: what the scheduler still holds, and who is in the graph.
    Waits until that is nothing."""
    fleet.instruct("")
    fleet.until(lambda: idle(fleet) and not _strangers(fleet), patience_s)
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
    """Return the shared memory that killed processes left."""
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
    """Return nodes, publishers and subscriptions of the fleet in the graph that no living process has."""
    names = Counter(
        f"{namespace.rstrip('/')}/{name}" for name, namespace in fleet.node.get_node_names_and_namespaces()
    )
    kinds = ("drivers", "inference", "trajectory")
    due = Counter(f"{robot}/{kind}" for robot in fleet.robots for kind in kinds)
    due.update(["/network", "/fleet_scheduler"])
    strangers = [f"node {name}" for name in (names - due).elements()]
    for robot in fleet.robots:
        for name in (*TOLD, *HEARD):
            for ends, word in (
                (fleet.node.count_publishers(f"{robot}/fleet/{name}"), "publisher"),
                (fleet.node.count_subscribers(f"{robot}/fleet/{name}"), "subscription"),
            ):
                strangers += [f"{word} of {robot}/fleet/{name}"] * max(0, ends - 1)
    return strangers
