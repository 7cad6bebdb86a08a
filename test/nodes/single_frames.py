"""What the inference node makes of one frame, sent until it is looked at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_accel_msgs.msg import Observed
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages.convert import stamp_ns
from vla_accel_ros.types import Chunk


class SingleFrames:
    """The chunks of frames that are sent one at a time, and what each was computed from."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._observed: dict[int, Observed] = {}
        operator.node.create_subscription(Observed, "observed", self._on_observed, qos.REPORT)

    def chunk_of(self, send: Callable[[], int], positions: np.ndarray) -> Chunk:
        """A chunk of the frame that `send` sends, which is sent every 0.3 s as if it were new.

        Of all of it: what is lost on its way leaves the images or joints of the frame before.
        send: returns the stamp it gave the frame. positions: of its joints.
        """
        stamps: set[int] = set()
        state = self._operator.contract.to_policy(positions).astype(np.float32)

        def answered() -> Chunk | None:
            if not stamps or self._operator.now_ns() - max(stamps) > 300_000_000:
                stamps.add(send())
            chunks = [received.chunk for received in self._operator.chunks]
            whole = (c for c in chunks if c.stamp_ns in stamps and self._is_whole(c, state))
            return next(whole, None)

        chunk = self._operator.wait(answered, 90.0, "chunk of a frame")
        assert chunk is not None
        return chunk

    def _on_observed(self, message: Observed) -> None:
        self._observed[message.kv_version] = message
        self._operator.changed()

    def _is_whole(self, chunk: Chunk, state: np.ndarray) -> bool:
        seen = self._observed.get(chunk.kv_version)
        return (
            seen is not None
            and {stamp_ns(stamp) for stamp in seen.stamps} == {chunk.stamp_ns}
            and np.allclose(seen.state, state, atol=1e-6)
            and (chunk.state is None or np.allclose(chunk.state, state, atol=1e-6))
        )
