"""What the inference node makes of one frame, sent until it is looked at."""

from __future__ import annotations

from collections.abc import Callable

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.types import Chunk


def chunk_of(operator: Operator, send: Callable[[], int]) -> Chunk:
    """A chunk of the frame that `send` sends, which is sent every 0.3 s as if it were new.

    send: returns the stamp it gave the frame.
    """
    stamps: set[int] = set()

    def answered() -> Chunk | None:
        if not stamps or operator.now_ns() - max(stamps) > 300_000_000:
            stamps.add(send())
        return next((r.chunk for r in operator.chunks if r.chunk.stamp_ns in stamps), None)

    chunk = operator.wait(answered, 90.0, "chunk of a frame")
    assert chunk is not None
    return chunk
