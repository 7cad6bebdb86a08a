"""The execution horizon of the node's chunks: set as soon as a chunk is made, and told in /diagnostics.

Guidance and the trajectory node both go by it, so it is set before either hears of the chunk. A horizon that
ends before its chunk is there lets the robot stand still: such chunks are counted and warned of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.fleet.horizon import Horizons, limited
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.types import Chunk

_REMEMBERED = 50


class ChunkHorizons:
    """By the parameter `horizon`, see fleet.horizon. updates: denoising updates that a chunk has, 0 of a
    model that acts by tokens. now_ns: the ROS clock. Safe to use from several threads.

    Raises ValueError, in one sentence, for what is no horizon, or one whose signal these chunks do not have.
    """

    def __init__(self, spec: str, updates: int, now_ns: Callable[[], int]) -> None:
        self._horizons, self._now_ns = Horizons(spec), now_ns
        for rule in self._horizons.rules:
            if why := rule.lacking(updates):
                raise ValueError(f"horizon is {spec!r}, but it {why}: use all or static:N.")
        self._executed: deque[int] = deque(maxlen=_REMEMBERED)
        self._made, self._past, self._newest_past = 0, 0, False

    def limit(self, chunk: Chunk, instruction: str) -> Chunk:
        """A chunk that was just made, with its horizon."""
        chunk = limited(chunk, self._horizons.of(chunk, instruction))
        cut = chunk.executed < chunk.horizon
        self._newest_past = cut and chunk.due_ns(chunk.executed - 1) <= self._now_ns()
        self._past += self._newest_past
        self._made += 1
        self._executed.append(chunk.executed)
        return chunk

    def restart(self) -> None:
        """Compare with no chunk that was made so far."""
        self._horizons.forget()

    def status(self) -> DiagnosticStatus:
        """How much of the last chunks may be executed."""
        executed = tuple(self._executed)
        values = {
            "horizon": self._horizons.spec,
            "executed, newest [actions]": executed[-1] if executed else "none yet",
            "executed, mean [actions]": sum(executed) / len(executed) if executed else "none yet",
            "chunks": self._made,
            "past when made": self._past,
        }
        said = "chunks are executed as far as horizon says"
        if self._newest_past:
            said = "the newest chunk's horizon ended before it was made: give horizon more actions (+least:N)"
        return status("horizon", WARN if self._newest_past else OK, said, values)
