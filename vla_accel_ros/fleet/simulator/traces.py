"""Recorded tasks: JSON lines, one for each round.

    {"task": "night/3", "kind": "fold the towel", "actions": 22, "chunk": 50}

Rounds of a task stand in their order; those of several tasks may alternate. actions: how many of the chunk
were executed. chunk: how many it had. Tasks come in the order in which they began.
"""

from __future__ import annotations

import json
from pathlib import Path

from vla_accel_ros.fleet.simulator.workloads import Script


def load(path: Path) -> list[Script]:
    """The tasks of a file. Raises ValueError for a file with none, or for a line that is no round."""
    rounds: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    chunks: dict[str, int] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            task, actions, chunk = str(found["task"]), int(found["actions"]), int(found["chunk"])
            if not 1 <= actions <= chunk:
                raise ValueError(f"{actions} actions of a chunk of {chunk}")
            kind = str(found["kind"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number}: {error!r}; let it have a task, its kind, and how many "
                "actions of a chunk were executed."
            ) from error
        kinds.setdefault(task, kind)
        chunks[task] = max(chunk, chunks.get(task, 0))
        rounds.setdefault(task, []).append(actions)
    if not rounds:
        raise ValueError(f"{path} has no round; record one or more.")
    return [Script(kinds[task], sum(each), tuple(each), chunks[task]) for task, each in rounds.items()]
