"""Where the trajectory node's chunks come from: shared memory of this machine, or the topic.

Messages carry some tens of chunks a second, the slot as many as the engine makes. The slot is polled before
each command of the fastest controller. `auto` uses the slot if all controllers are commanded at a fixed rate,
and the topic otherwise: a controller that gets whole trajectories gets at most TRAJECTORIES_HZ of them, and
one motion is decided for all. While the slot has new chunks, messages are ignored. The topic takes over, and
the log says so, when the slot has no new chunk for SILENT_S and messages come, when it is damaged, or when
its writer has ended. A chunk that comes both ways is followed once; one that was there before the node began
is never followed. Chunks are checked, and grow old, in the same way on both paths. On both, the newest chunk
waits after one that took long to follow, so that a flood of slow chunks delays no service call.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.chunk_topic import TOPIC, slot_name
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.sensing.chunk_slot import ChunkSlot, Take

TRAJECTORIES_HZ = 60.0
"""Highest rate of whole trajectories to a controller, for chunks from the slot."""
SILENT_S = 0.2
LONG_S = 0.005
"""After a message that took longer to follow than this, other callbacks get as much time."""
SLOT, BY_TOPIC = "slot", "topic"


class ChunkSource:
    """The chunks of a trajectory node, from its configuration to its release.

    take: gets a function that returns a chunk or raises ValueError; follows the chunk and returns whether it
    was accepted. lost: called with the reason when the slot in use is gone. clock: monotonic seconds.
    Attributes: `used`, "slot" or "topic", the source of the last chunks; `counts` for diagnostics.
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
        self._joints = contract.action_names
        self._newest: ActionChunk | None = None  # message that waits
        self._free_s = -math.inf  # no message is followed before then
        rates = [controller.rate_hz for controller in contract.controllers]
        wanted = value(node, "chunks_from")
        streamed = all(rates)
        self.wanted = BY_TOPIC if wanted == "auto" and not streamed else wanted
        self.counts: Counter[str] = Counter()
        self._slot: ChunkSlot | None = None
        if self.wanted != BY_TOPIC:
            self._slot = ChunkSlot(
                slot_name(node),
                contract.action_names,
                max(TRAJECTORIES_HZ, *(rate or 0.0 for rate in rates)),
                0.0 if streamed else TRAJECTORIES_HZ,
                self.counts,
                f"topic {node.resolve_topic_name(TOPIC)}",
                clock,
            )
        self.used = ""
        node.on_release(self.close)
        self.begin()

    def begin(self) -> None:
        """Ignore earlier chunks: at activation, and when the clock has jumped."""
        self._newest = None
        if self._slot is not None:
            self._slot.begin()

    def poll_before_commands(self, outputs: Outputs) -> None:
        """Poll the slot before each command of the fastest controller; at TRAJECTORIES_HZ if no controller is
        commanded at a fixed rate."""
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
        return self._slot.writer if self._slot is not None else ""

    def poll(self) -> None:
        """Follow a new chunk in the slot."""
        if self._slot is None:
            return
        taken = self._slot.poll(self._take)
        if self.used == SLOT and not self._slot.is_open:
            why = self._slot.refused or f"the process that wrote chunk slot {self._slot.name} has ended"
            self._lost(why)
            self._use("", f"the chunk slot is no longer used: {why}")
        elif taken:
            self.counts["by slot"] += 1
            self._use(SLOT, f"chunks come from the slot of {self.writer}")

    def came(self, message: ActionChunk) -> None:
        """A message has come: follow it now or, if there is no time, later."""
        if self._node.active and self.takes(message):
            self._newest = message
            self.follow_newest()

    def follow_newest(self) -> None:
        """Follow the message that waits, if there is one, and time for it; called at a fixed rate."""
        message, began_s = self._newest, self._clock()
        if message is None or began_s < self._free_s:
            return
        self._newest = None
        self._take(partial(convert.chunk_from_message, message, self._joints))
        ended_s = self._clock()
        if ended_s - began_s > LONG_S:
            self._free_s = 2.0 * ended_s - began_s

    def takes(self, message: ActionChunk) -> bool:
        """Whether to follow a message: not if the slot had the same chunk, or has a newer one."""
        if self._slot is None:
            return True
        self.poll()
        number = (convert.stamp_ns(message.header.stamp), message.request_id)
        if self._clock() - self._slot.came_s <= SILENT_S or number <= self._slot.last:
            self.counts["messages beside the slot"] += 1
            return False
        self._use(BY_TOPIC, f"chunks come from {TOPIC}: {self.problem or 'the slot has nothing new'}")
        return True

    @property
    def problem(self) -> str:
        """One sentence that says why no chunk comes from the slot; empty if one may."""
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
        if slot.is_empty:
            return f"chunk slot {slot.name} has no complete chunk: is inference making any?"
        return ""

    def statuses(self) -> list[DiagnosticStatus]:
        """A line of diagnostics, if the slot may be used."""
        if self._slot is None:
            return []
        fine = self.used == SLOT and self._slot.is_open
        what = f"by the slot of {self.writer}" if fine else f"by {TOPIC}: {self.problem or 'slot is silent'}"
        if self.wanted == SLOT and not fine:
            what = self.problem or "no chunk has come yet"
        return [status("chunks", OK if fine or self.listens else WARN, what, dict(self.counts))]

    def close(self) -> None:
        """Release the slot."""
        if self._slot is not None:
            self._slot.close()

    def _use(self, used: str, sentence: str) -> None:
        """Log a change of the source."""
        if self.used == SLOT and used != SLOT:
            self._node.get_logger().warning(sentence)
        elif self.used != used:  # on its own line: rclpy binds a line of code to one severity
            self._node.get_logger().info(sentence)
        self.used = used
