"""Runs a tuning step by step, and writes the file after each, so that it can continue after a stop.

A step times the launch settings of one kernel. A step that runs out of GPU memory leaves the previous choice
and is reported. When the time is over, no further step begins.
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
"""Fields of a file's provenance that must match this run for its steps to count."""


@dataclass(frozen=True)
class Gain:
    """Microseconds of a kernel with the table in use, and with the new one."""

    before_us: float
    us: float

    def __str__(self) -> str:
        return f"{self.before_us:.2f} us before, {self.us:.2f} now ({self.us / self.before_us - 1:+.1%})"


Step = Callable[[], "Gain | None"]
"""Enters the fastest settings in the table; returns None if there is nothing to compare with."""


@dataclass
class Tuning:
    """A table in progress, and the file that keeps it.

    used: the table that engines use until now. done: the gain of each step done so far, by label. about: the
    options, by which a later run recognises the same tuning.
    """

    table: Table
    used: Table
    path: Path
    about: Mapping[str, Any]
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    done: dict[str, Gain | None] = field(default_factory=dict)

    def resume(self) -> int:
        """Take over the steps of an unfinished tuning with the same device, versions and options; return
        their number.

        Raises ValueError naming the file if it is no tuning table.
        """
        if not self.path.exists():
            return 0
        text = self.path.read_text()
        stored, data = read_table(text, str(self.path), self.table.gpu), json.loads(text)
        present = provenance()
        same = all(data.get(name) == present[name] for name in SAME) and data.get("about") == dict(self.about)
        if data.get("finished", True) or not same:
            return 0
        self.table.entries, self.table.hopper, self.table.pdl = stored.entries, stored.hopper, stored.pdl
        self.table.smaller = stored.smaller
        self.done = {label: gain and Gain(**gain) for label, gain in data["done"].items()}
        return len(self.done)

    def run(self, steps: Iterable[tuple[str, Step]], until_s: float) -> bool:
        """Run the steps that are not done, until `until_s` of the clock; return whether all are done."""
        import torch

        for label, step in steps:
            if label in self.done:
                continue
            if self.clock() >= until_s:
                self._keep(finished=False)
                return False
            previous = dict(self.table.entries), dict(self.table.hopper)
            try:
                self.done[label] = step()
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                self.table.entries, self.table.hopper = previous
                self.done[label] = None
                self.say(f"{label:44} left as it was: {str(error).splitlines()[0]}")
            self._keep(finished=False)
        self._keep(finished=True)
        return True

    def _keep(self, finished: bool) -> None:
        """Write the file atomically: a stop while writing leaves the previous file."""
        gains = {label: gain and vars(gain) for label, gain in self.done.items()}
        about = {"about": dict(self.about), "finished": finished, "done": gains}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.part")
        partial.write_text(json.dumps({**self.table.to_json(), **about, **provenance()}, indent=1) + "\n")
        partial.replace(self.path)
