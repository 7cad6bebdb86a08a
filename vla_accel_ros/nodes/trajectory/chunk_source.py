"""Where the trajectory node has its chunks from: shared memory of this machine, or the topic.

Messages carry some tens of chunks a second, the slot as many as the engine makes; it is looked into before
each command of the fastest controller. `auto` takes the slot where all controllers are sent commands at a
rate, and the topic otherwise: a controller that is sent whole trajectories is sent TRAJECTORIES_HZ of them at
most, and one motion is decided for all. While the slot has new chunks, messages are left alone; when it has
none for SILENT_S and messages come, when it is damaged, or its writer has ended, the topic takes over, and
the log says so. Whichever way a chunk comes, it is followed once, and what was there before the node began is
never followed. Chunks of both ways are checked alike, and grow old alike.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.chunk_record import ChunkReader
from vla_accel_ros.nodes import convert
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.chunk_topic import TOPIC, slot_name
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.sensing.slot import SlotReader
from vla_accel_ros.timeline import TIMELINE, flow
from vla_accel_ros.types import Chunk

TRAJECTORIES_HZ = 60.0
"""Most whole trajectories that are sent to a controller of chunks from the slot."""
SILENT_S = 0.2
SLOT, BY_TOPIC = "slot", "topic"

Take = Callable[[Callable[[], Chunk]], bool]


class ChunkSource:
    """The chunks of a trajectory node, from its configuration to its release.

    take: follows what it is given a function for, which raises ValueError for what is refused; returns
    whether it was not. lost: gets the sentence why the slot that was followed is there no more. clock:
    monotonic seconds. Attributes: `used`, "slot" or "topic", whence the last
    chunks came; `counts` for diagnostics.
    """

    def __init__(
        self,
        node: ManagedNode,
        contract: Contract,
        take: Take,
        lost: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._take, self._lost, self._clock = node, take, lost, clock
        self._track = f"topic {node.resolve_topic_name(TOPIC)}"
        rates = [controller.rate_hz for controller in contract.controllers]
        wanted = value(node, "chunks_from")
        self._streamed = all(rates)
        self.wanted = BY_TOPIC if wanted == "auto" and not self._streamed else wanted
        self._period_s = 1.0 / max(TRAJECTORIES_HZ, *(rate or 0.0 for rate in rates))
        self._reader = ChunkReader(contract.action_names)
        self._slot: SlotReader | None = None
        if self.wanted != BY_TOPIC:
            self._slot = SlotReader(slot_name(node), clock)
        self.counts: Counter[str] = Counter()
        self.used = ""
        node.on_release(self.close)
        self.begin()

    def begin(self) -> None:
        """Follow nothing of before: at activation, and when the clock has jumped."""
        entry = None if self._slot is None else self._slot.newest()
        self._number = 0 if entry is None else entry.number
        self._last = (0, 0)
        self._came_s = self._free_s = -float("inf")

    def poll_before_commands(self, outputs: Outputs) -> None:
        """Look into the slot before each command of the fastest controller; at TRAJECTORIES_HZ where none is
        sent commands at a rate."""
        if self._slot is not None and outputs.fastest_hz:
            outputs.before_commands = self.poll
        elif self._slot is not None:
            self._node.every(1.0 / TRAJECTORIES_HZ, self.poll)

    @property
    def listens(self) -> bool:
        """Whether messages may be followed."""
        return self.wanted != SLOT

    @property
    def writer(self) -> str:
        """The node that writes the slot; empty while there is none, or it has written nothing."""
        return self._reader.writer if self._slot is not None and self._slot.is_open else ""

    def poll(self) -> None:
        """Follow what is new in the slot."""
        if self._slot is None or self._clock() < self._free_s:
            return
        entry = self._slot.newest()
        if self.used == SLOT and not self._slot.is_open:
            why = self._slot.refused or f"the process that wrote chunk slot {self._slot.name} has ended"
            self._lost(why)
            self._use("", f"chunks come by the slot no more: {why}")
        if entry is None or entry.number == self._number:
            return
        self.counts["overtaken"] += max(0, min(entry.number - self._number, 1000) - 1) if self._number else 0
        self._number = entry.number
        began_s, begin_ns = self._clock(), TIMELINE.now_ns()
        taken = self._take(partial(self._read, entry.data))
        TIMELINE.span(self._track, "read", begin_ns, flows=(flow(entry.stamp_ns),), detail="slot")
        if taken:
            self.counts["by slot"] += 1
            self._came_s = began_s
            self._use(SLOT, f"chunks come by the slot of {self.writer}")
        ended_s = self._clock()
        if not self._streamed:
            self._free_s = began_s + 1.0 / TRAJECTORIES_HZ
        if ended_s - began_s > self._period_s / 2:  # others have their turn for as long
            self._free_s = max(self._free_s, 2.0 * ended_s - began_s)

    def takes(self, message: ActionChunk) -> bool:
        """Whether a message is to be followed: not what the slot has had, or has something newer for."""
        if self._slot is None:
            return True
        self.poll()
        number = (convert.stamp_ns(message.header.stamp), message.request_id)
        if self._clock() - self._came_s <= SILENT_S or number <= self._last:
            self.counts["messages beside the slot"] += 1
            return False
        self._use(BY_TOPIC, f"chunks come by {TOPIC}: {self.problem or 'nothing new is in the slot'}")
        return True

    @property
    def problem(self) -> str:
        """Why no chunk comes from the slot, a sentence; empty when it may."""
        slot = self._slot
        if slot is None:
            return ""
        if slot.refused:
            return slot.refused
        if not slot.is_open:
            return (
                f"there is no chunk slot {slot.name} with a living writer: is inference active on this "
                "machine, and its chunk_slot not false?"
            )
        if slot.newest() is None:
            return f"chunk slot {slot.name} has no whole chunk: is inference making any?"
        return ""

    def statuses(self) -> list[DiagnosticStatus]:
        """A line of diagnostics, where the slot may be used."""
        if self._slot is None:
            return []
        fine = self.used == SLOT and self._slot.is_open
        what = f"by the slot of {self.writer}" if fine else f"by {TOPIC}: {self.problem or 'slot is silent'}"
        if self.wanted == SLOT and not fine:
            what = self.problem or "no chunk has come yet"
        return [status("chunks", OK if fine or self.listens else WARN, what, dict(self.counts))]

    def close(self) -> None:
        """Let go of the slot."""
        if self._slot is not None:
            self._slot.close()

    def _read(self, data: bytes) -> Chunk:
        chunk = self._reader.chunk(data)
        self._last = (chunk.stamp_ns, chunk.request_id)
        return chunk

    def _use(self, used: str, sentence: str) -> None:
        """Say when it is another."""
        if self.used == SLOT and used != SLOT:
            self._node.get_logger().warning(sentence)
        elif self.used != used:  # in a line of its own: rclpy binds a line of code to one severity
            self._node.get_logger().info(sentence)
        self.used = used
