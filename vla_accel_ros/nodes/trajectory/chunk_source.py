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

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import convert
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.chunk_topic import TOPIC, slot_name
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.sensing.chunk_slot import ChunkSlot, Take

TRAJECTORIES_HZ = 60.0
"""Most whole trajectories that are sent to a controller of chunks from the slot."""
SILENT_S = 0.2
SLOT, BY_TOPIC = "slot", "topic"


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
        """Follow nothing of before: at activation, and when the clock has jumped."""
        if self._slot is not None:
            self._slot.begin()

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
        return self._slot.writer if self._slot is not None else ""

    def poll(self) -> None:
        """Follow what is new in the slot."""
        if self._slot is None:
            return
        taken = self._slot.poll(self._take)
        if self.used == SLOT and not self._slot.is_open:
            why = self._slot.refused or f"the process that wrote chunk slot {self._slot.name} has ended"
            self._lost(why)
            self._use("", f"chunks come by the slot no more: {why}")
        elif taken:
            self.counts["by slot"] += 1
            self._use(SLOT, f"chunks come by the slot of {self.writer}")

    def takes(self, message: ActionChunk) -> bool:
        """Whether a message is to be followed: not what the slot has had, or has something newer for."""
        if self._slot is None:
            return True
        self.poll()
        number = (convert.stamp_ns(message.header.stamp), message.request_id)
        if self._clock() - self._slot.came_s <= SILENT_S or number <= self._slot.last:
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
        if slot.is_empty:
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

    def _use(self, used: str, sentence: str) -> None:
        """Say when it is another."""
        if self.used == SLOT and used != SLOT:
            self._node.get_logger().warning(sentence)
        elif self.used != used:  # in a line of its own: rclpy binds a line of code to one severity
            self._node.get_logger().info(sentence)
        self.used = used
