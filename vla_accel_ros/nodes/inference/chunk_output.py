"""Where chunks go: all into shared memory, for a trajectory node on this machine; some as messages, for
others.

A message takes a hundred times as long as a write into shared memory, so at a high rate only some chunks are
published: `chunk_messages_hz`. Each message is complete, with all that the chunk was computed from, so each
can be replayed bit for bit even if others are missing. The slot exists while the node is active. It has one
writer; if another process already has it, `auto` does without and logs that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.chunk_record import ChunkWriter
from vla_accel_ros.control.chunking.plausibility import MOST_ACTIONS
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.chunk_topic import TOPIC, slot_name
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.sensing.slot import SlotWriter
from vla_accel_ros.timeline import TIMELINE, flow
from vla_accel_ros.types import Chunk

_LOOK_S = 1.0
"""How often to check whether another process has truncated the slot."""


class ChunkOutput:
    """The chunks of an inference node, from its configuration to its release. Call `send` from one thread,
    between `open` and `close`. clock: monotonic seconds."""

    def __init__(
        self, node: ManagedNode, contract: Contract, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._node, self._contract, self._clock = node, contract, clock
        self._publisher = node.output(ActionChunk, TOPIC, qos.COMMAND)
        self._slot: SlotWriter | None = None
        self._track = f"topic {node.resolve_topic_name(TOPIC)}"
        rate_hz = value(node, "chunk_messages_hz")
        self._period_s = 1.0 / rate_hz if rate_hz else 0.0
        self._due_s = self._look_s = -float("inf")
        self._records = ChunkWriter(contract.action_names, node.get_fully_qualified_name())
        node.on_release(self.close)

    def open(self) -> None:
        """Make the slot, at activation. Raises ValueError if `chunk_slot` is true and that fails."""
        choice = str(value(self._node, "chunk_slot")).lower()
        if choice == "false":
            return
        try:
            self._slot = SlotWriter(slot_name(self._node), self._records.most_bytes)
        except ValueError as error:
            if choice == "true":
                raise
            self._node.get_logger().warning(f"chunks are sent by the topic only: {error}")
        self._look_s = self._clock()

    def close(self) -> None:
        """Remove the slot. A second call does nothing."""
        if self._slot is not None:
            self._slot.close()
        self._slot = None

    def send(self, chunk: Chunk, inference_s: float, in_ros_units: bool = False) -> None:
        """Write a chunk into the slot and, if one is due, publish it as a message. It is in the policy's
        units, or in ROS units."""
        actions = chunk.actions if in_ros_units else self._contract.to_robot(chunk.actions)
        actions = np.asarray(actions, dtype=np.float32)
        now_s = self._clock()
        if self._slot is not None and len(actions) <= MOST_ACTIONS:
            if now_s >= self._look_s + _LOOK_S:
                self._remake(now_s)
            begin_ns = TIMELINE.now_ns()
            self._slot.write(self._records.record(chunk, actions, inference_s), chunk.stamp_ns)
            TIMELINE.span(self._track, "write", begin_ns, flows=(flow(chunk.stamp_ns),), detail="slot")
        if now_s >= self._due_s:
            self._due_s = max(self._due_s + self._period_s, now_s + self._period_s / 2)
            self._publisher.publish(convert.chunk_to_message(chunk, self._contract, inference_s, actions))

    def _remake(self, now_s: float) -> None:
        assert self._slot is not None
        self._look_s = now_s
        if not self._slot.is_whole():
            self._node.get_logger().warning("another process truncated the chunk slot: making a new one")
            self._slot.close()
            self._slot = SlotWriter(slot_name(self._node), self._records.most_bytes)
