"""A tuning, step by step: what is chosen is kept after each, so that it goes on where it was broken off.

A step times the ways to launch one kernel. One that needs more memory than there is leaves what was chosen
before, and is named; when the time is over no further one is begun.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_accel_ros.kernels.tuning import Table, read_table
from vla_accel_ros.tools.provenance import provenance

SAME = ("machine", "versions")
"""Of a file's provenance, what must be as now for its steps to count."""


@dataclass(frozen=True)
class Gain:
    """Microseconds of a kernel as it was launched before, and as it is from now on."""

    before_us: float
    us: float

    def __str__(self) -> str:
        return f"{self.before_us:.2f} us before, {self.us:.2f} now ({self.us / self.before_us - 1:+.1%})"


Step = Callable[[], "Gain | None"]
"""Enters what is fastest in the table; None where there is nothing to compare it with."""


@dataclass
class Tuning:
    """A table in progress, and the file where it is kept.

    used: the table that engines have until now. done: the steps so far, with what they gained. about: what
    belongs to the same tuning: its options.
    """

    table: Table
    used: Table
    path: Path
    about: Mapping[str, Any]
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    done: dict[str, Gain | None] = field(default_factory=dict)

    def resume(self) -> int:
        """Take over the steps of a tuning that was broken off, of the same device, versions and options;
        returns how many. Raises ValueError naming the file if it is no tuning table."""
        if not self.path.exists():
            return 0
        text = self.path.read_text()
        found, data = read_table(text, str(self.path), self.table.processors), json.loads(text)
        now = provenance()
        same = all(data.get(name) == now[name] for name in SAME) and data.get("about") == dict(self.about)
        if data.get("finished", True) or not same:
            return 0
        self.table.entries, self.table.hopper, self.table.pdl = found.entries, found.hopper, found.pdl
        self.done = {label: gain and Gain(**gain) for label, gain in data["done"].items()}
        return len(self.done)

    def run(self, steps: Iterable[tuple[str, Step]], until_s: float) -> bool:
        """Do those that are not done, until that time of the clock; whether all are."""
        import torch

        for label, step in steps:
            if label in self.done:
                continue
            if self.clock() >= until_s:
                self._keep(finished=False)
                return False
            kept = dict(self.table.entries), dict(self.table.hopper)
            try:
                self.done[label] = step()
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                self.table.entries, self.table.hopper = kept
                self.done[label] = None
                self.say(f"{label:44} left as it was: {str(error).splitlines()[0]}")
            self._keep(finished=False)
        self._keep(finished=True)
        return True

    def _keep(self, finished: bool) -> None:
        """Write the file; one that is broken off leaves the one before."""
        gains = {label: gain and vars(gain) for label, gain in self.done.items()}
        about = {"about": dict(self.about), "finished": finished, "done": gains}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.part")
        beside.write_text(json.dumps({**self.table.to_json(), **about, **provenance()}, indent=1) + "\n")
        beside.replace(self.path)
