"""What a robot still executes of the chunks it took, and how long its arm has stood for want of one.

The trajectory node executes a chunk by the times of its actions (in mode `block` from when it comes), as far
as its horizon, until its observation is as old as the contract allows. It is not asked: that follows from the
chunk. A chunk with a horizon may be executed some actions further while the next one is waited for; it ends
at rest as every chunk does. Time is given, in nanoseconds of the robot's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vla_accel_ros.types import Chunk

S = 1_000_000_000


@dataclass(frozen=True)
class _Taken:
    """ends_ns: when its horizon is over; stands_ns: when the arm stands, after what it is extended by."""

    begins_ns: int
    ends_ns: int
    stands_ns: int


class Execution:
    """Of one robot. max_age_s, step_dt_s: contract.chunk. extend_actions: how many actions past its horizon a
    chunk may be executed."""

    def __init__(self, max_age_s: float, step_dt_s: float, extend_actions: int = 0) -> None:
        self._max_age_ns, self._step_ns = round(max_age_s * S), round(step_dt_s * S)
        self._extend_actions = extend_actions
        self.state, self._mode, self._lead_ns = "", "", 0
        self._beginning: int | None = None
        self._newest_ns = -1
        self.forget()
        self.begin_task(0)

    def forget(self) -> None:
        """Nothing that was taken is executed any more, and stamps begin anew."""
        self._taken: _Taken | None = None
        self._held = False
        self._newest_ns = -1

    def begin_task(self, now_ns: int) -> None:
        """Count from here how long the arm stands."""
        self._stalled_ns, self._counted_ns = 0, now_ns

    def told(self, state: str, mode: str, lead_s: float, beginning: int, now_ns: int) -> None:
        """What the trajectory node tells of itself; see control.chunking.guidance.Execution."""
        self.count(now_ns, True)
        if beginning != self._beginning:
            self._taken, self._beginning = None, beginning
        if state == "running":
            self._held = False
        elif self.moves(now_ns):
            self._held = True  # it stands for another reason than want of a chunk
        self.state, self._mode, self._lead_ns = state, mode, round(lead_s * S)

    @property
    def released(self) -> bool:
        """Whether the robot is lent to others, or its trajectory node is not active."""
        return self.state == "released"

    def extended(self, chunk: Chunk) -> Chunk:
        """The chunk as it may be executed."""
        if chunk.execution_horizon is None:
            return chunk
        most = min(chunk.horizon, chunk.executed + self._extend_actions)
        return replace(chunk, execution_horizon=most)

    def take(self, chunk: Chunk, now_ns: int) -> float | None:
        """Execute a chunk that came now; None. If nothing of it can be executed any more, or it is older than
        one that was taken, nothing happens, and it returns the seconds after its observation that it lasts.
        """
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
        """When the horizon of the last chunk is over; None when there is none."""
        return None if self._taken is None else self._taken.ends_ns

    def moves(self, now_ns: int) -> bool:
        """Whether there is something to execute."""
        return self._taken is not None and now_ns < self._taken.stands_ns

    def progress(self, now_ns: int) -> tuple[float, int]:
        """How long ago the last chunk began to be executed [s], negative where none is; its actions that are
        left, to its horizon."""
        taken = self._taken
        if taken is None or self.state not in ("running", "") or now_ns < taken.begins_ns:
            return -1.0, 0
        left = max(0, taken.ends_ns - now_ns) / self._step_ns
        return (now_ns - taken.begins_ns) * 1e-9, math.floor(left + 1e-6)

    @property
    def stalled_s(self) -> float:
        """How long the arm has stood for want of a chunk since the task began, as of the last `count`."""
        return self._stalled_ns * 1e-9

    def count(self, now_ns: int, wanted: bool) -> None:
        """Look at the time. wanted: whether there is something to do."""
        before_ns, self._counted_ns = self._counted_ns, max(now_ns, self._counted_ns)
        if wanted and not self._held and not self.released:
            stands_ns = before_ns if self._taken is None else self._taken.stands_ns
            self._stalled_ns += max(0, self._counted_ns - max(before_ns, stands_ns))

    def _ends_ns(self, chunk: Chunk, begins_ns: int) -> int:
        first_ns = begins_ns if self._mode == "block" else chunk.stamp_ns
        ends_ns = first_ns + round(chunk.executed * chunk.step_dt_s * S)
        return min(ends_ns, chunk.stamp_ns + self._max_age_ns)
