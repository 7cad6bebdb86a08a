"""Whether other programs take the processors of this host, so that a model is slow by no fault of its own.

Linux says for how much of the last 10 s some task waited for a processor (/proc/pressure/cpu). Where it does
not, in containers and on older kernels, the number of times that this process was interrupted for another one
says it. A model that computes on the processors itself makes its own tasks wait: that is a slow model.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

BUSY_PERCENT = 20.0
"""Share of time in which tasks wait for a processor, above which a host is busy."""
INTERRUPTED_PER_S = 100.0
OWN = 0.5
"""Share of the used processor time from which on a process has itself to blame."""
_LOOK_S = 1.0


class Host:
    """The processors, as a process sees them; it is cheap to ask often. proc: the folder /proc. clock:
    monotonic seconds. cpu: processor seconds that this process has used."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._proc, self._clock, self._cpu = proc, clock, cpu
        self._looked = self._look()
        self._busy = ""

    @property
    def waiting_percent(self) -> float:
        """The share of the last 10 s in which tasks waited for a processor, if that is a busy host's; else
        0."""
        waits = self._waiting() or 0.0
        return waits if waits > BUSY_PERCENT else 0.0

    @property
    def busy(self) -> str:
        """A sentence if other programs keep this host busy, else empty."""
        at_s, own_s, used_s, interrupted = self._looked
        passed_s = self._clock() - at_s
        if passed_s >= _LOOK_S:
            self._looked = self._look()
            own_share = (self._looked[1] - own_s) / max(self._looked[2] - used_s, 1e-6)
            waits = self._waiting()
            per_s = (self._looked[3] - interrupted) / passed_s
            is_busy = per_s > INTERRUPTED_PER_S if waits is None else waits > BUSY_PERCENT
            self._busy = self._sentence(waits, per_s) if is_busy and own_share <= OWN else ""
        return self._busy

    @property
    def load(self) -> dict[str, object]:
        """Numbers for people: tasks that want a processor, processors, and memory that is free."""
        meminfo = (self._proc / "meminfo").read_text()
        free = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
        waits = self._waiting()
        return {
            "load": os.getloadavg()[0],
            "processors": os.cpu_count(),
            "memory free [MB]": int(free[1]) // 1024 if free else "unknown",
            "tasks waited [%]": "unknown" if waits is None else waits,
        }

    @staticmethod
    def _sentence(waits: float | None, per_s: float) -> str:
        waited = (
            "" if waits is None else f"tasks waited for a processor in {waits:.0f} % of the last 10 s, and "
        )
        return (
            f"this host is busy: {waited}this node was interrupted {per_s:.0f} times a second: end other "
            "programs (top shows them), or give this one processors of its own"
        )

    def _look(self) -> tuple[float, float, float, int]:
        """Time, processor seconds used by this process and by all, and interruptions of this process."""
        fields = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
        used = sum(int(field) for i, field in enumerate(fields) if i not in (3, 4))  # not idle, nor waiting
        interrupted = 0
        for status in (self._proc / "self" / "task").glob("*/status"):
            try:
                match = re.search(r"^nonvoluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)
            except OSError:
                continue  # the thread has ended
            interrupted += int(match[1]) if match else 0
        return self._clock(), self._cpu(), used / os.sysconf("SC_CLK_TCK"), interrupted

    def _waiting(self) -> float | None:
        """Percentage of the last 10 s in which tasks waited for a processor; None if unknown."""
        try:
            match = re.search(r"some avg10=([\d.]+)", (self._proc / "pressure" / "cpu").read_text())
        except OSError:
            return None
        return float(match[1]) if match else None
