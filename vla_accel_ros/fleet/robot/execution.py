"""What a robot still executes of its chunks, and how long its arm has stood still for lack of one.

The trajectory node executes a chunk at the times of its actions (in mode `block` from its arrival), up to its
horizon, and until its observation reaches the contract's age limit. This module computes that from the chunk,
without asking the node. While the next chunk is awaited, a chunk with a horizon may be executed a few actions
further; it ends at rest, as every chunk does. Time is injected, in nanoseconds of the robot's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vla_accel_ros.types import Chunk

S = 1_000_000_000


@dataclass(frozen=True)
class _Taken:
    """An accepted chunk. ends_ns: end of its horizon. stands_ns: when the arm stops, after the extension."""

    begins_ns: int
    ends_ns: int
    stands_ns: int


class Execution:
    """The execution state of one robot. max_age_s, step_dt_s: of contract.chunk. extend_actions: how many
    actions beyond its horizon a chunk may be executed."""

    def __init__(self, max_age_s: float, step_dt_s: float, extend_actions: int = 0) -> None:
        self._max_age_ns, self._step_ns = round(max_age_s * S), round(step_dt_s * S)
        self._extend_actions = extend_actions
        self.state, self._mode, self._lead_ns = "", "", 0
        self._beginning: int | None = None
        self._newest_ns = -1
        self.forget()
        self.begin_task(0)

    def forget(self) -> None:
        """Forget all accepted chunks and stamps."""
        self._taken: _Taken | None = None
        self._held = False
        self._newest_ns = -1

    def begin_task(self, now_ns: int) -> None:
        """Start counting the stalled time of a new task."""
        self._stalled_ns, self._counted_ns = 0, now_ns

    def told(self, state: str, mode: str, lead_s: float, beginning: int, now_ns: int) -> None:
        """Record the trajectory node's status; see control.chunking.guidance.Execution."""
        self.count(now_ns, True)
        if beginning != self._beginning:
            self._taken, self._beginning = None, beginning
        if state == "running":
            self._held = False
        elif self.moves(now_ns):
            self._held = True  # the arm stands for a reason other than a missing chunk
        self.state, self._mode, self._lead_ns = state, mode, round(lead_s * S)

    @property
    def released(self) -> bool:
        """Whether the robot is released to others, or its trajectory node is inactive."""
        return self.state == "released"

    def extended(self, chunk: Chunk) -> Chunk:
        """Return the chunk with its horizon extended as far as it may be executed."""
        if chunk.execution_horizon is None:
            return chunk
        longest = min(chunk.horizon, chunk.executed + self._extend_actions)
        return replace(chunk, execution_horizon=longest)

    def take(self, chunk: Chunk, now_ns: int) -> float | None:
        """Accept a chunk that arrived now and return None. If none of it can still be executed, or a newer
        one was accepted, ignore it and return for how many seconds after its observation it lasts."""
        begins_ns = now_ns + self._lead_ns
        stands_ns = self._ends_ns(self.extended(chunk), begins_ns)
        if stands_ns <= begins_ns or chunk.stamp_ns <= self._newest_ns:
            return max(0.0, (stands_ns - chunk.stamp_ns) * 1e-9)
        self.count(now_ns, True)
        self._newest_ns = chunk.stamp_ns
        began_ns = begins_ns if self._mode == "block" else max(begins_ns, chunk.stamp_ns)
        self._taken = _Taken(began_ns, self._ends_ns(chunk, begins_ns), stands_ns)
        return None

    @property
    def ends_ns(self) -> int | None:
        """End of the horizon of the last chunk; None without a chunk."""
        return None if self._taken is None else self._taken.ends_ns

    def moves(self, now_ns: int) -> bool:
        """Return whether there is motion left to execute."""
        return self._taken is not None and now_ns < self._taken.stands_ns

    def progress(self, now_ns: int) -> tuple[float, int]:
        """Return the seconds since the last chunk began to be executed, negative if it is not, and how many
        of its actions are left before the horizon."""
        current = self._taken
        if current is None or self.state not in ("running", "") or now_ns < current.begins_ns:
            return -1.0, 0
        remaining = max(0, current.ends_ns - now_ns) / self._step_ns
        return (now_ns - current.begins_ns) * 1e-9, math.floor(remaining + 1e-6)

    @property
    def stalled_s(self) -> float:
        """How long the arm has stood for lack of a chunk since the task began, as of the last `count`."""
        return self._stalled_ns * 1e-9

    def count(self, now_ns: int, wanted: bool) -> None:
        """Add the stalled time until now_ns. wanted: whether there is a task to do."""
        before_ns, self._counted_ns = self._counted_ns, max(now_ns, self._counted_ns)
        if wanted and not self._held and not self.released:
            stands_ns = before_ns if self._taken is None else self._taken.stands_ns
            self._stalled_ns += max(0, self._counted_ns - max(before_ns, stands_ns))

    def _ends_ns(self, chunk: Chunk, begins_ns: int) -> int:
        first_ns = begins_ns if self._mode == "block" else chunk.stamp_ns
        ends_ns = first_ns + round(chunk.executed * chunk.step_dt_s * S)
        return min(ends_ns, chunk.stamp_ns + self._max_age_ns)
