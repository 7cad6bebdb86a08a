"""Whence the chunks come: shared memory of this machine, or the topic.

Messages carry some tens of chunks a second, the slot as many as the engine makes. While the slot has new
chunks, messages are ignored. The topic takes over, and the log says so, when the slot has no new chunk for
SILENT_S and messages come, when it is damaged, or when its writer has ended. A chunk that comes both ways is
followed once; one that was there before the node began is never followed. Chunks are checked, and grow old,
in the same way on both paths. On both, the newest chunk waits after one that took long to follow, so that a
flood of slow chunks delays no service call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from vla_accel_ros.control.outputs.output import Clock
from vla_accel_ros.types import Chunk

SILENT_S = 0.2
LONG_NS = 5_000_000
"""After a message that took longer to follow than this, other callbacks get as much time."""
SLOT, TOPIC = "slot", "topic"

Received = Callable[[], Chunk]
"""Decodes a chunk; raises ValueError if it is none."""


class Slot(Protocol):
    """The slot of chunks (sensing/chunk_slot.py)."""

    name: str
    came_s: float
    last: tuple[int, int]
    counts: Counter[str]

    @property
    def is_open(self) -> bool: ...
    @property
    def is_empty(self) -> bool: ...
    @property
    def refused(self) -> str: ...
    @property
    def writer(self) -> str: ...

    def begin(self) -> None: ...

    def poll(self, take: Callable[[Received], bool]) -> bool: ...


class Follows(Protocol):
    """Who follows the chunks."""

    def take(self, received: Received) -> bool:
        """Follow a chunk, or refuse it if decoding raises ValueError; returns whether it was followed."""
        ...

    def lose_slot(self, why: str) -> None:
        """The slot in use has ended."""
        ...


class ChunkSource:
    """The chunks of a motion.

    slot: None if only messages are followed. listens: whether messages may be followed. log: where lines for
    the log are put, each with its level. Attributes: `used`, "slot" or "topic", the source of the last
    chunks; `counts` for diagnostics.
    """

    def __init__(
        self,
        follows: Follows,
        clock: Clock,
        log: list[tuple[str, str]],
        slot: Slot | None = None,
        listens: bool = True,
    ) -> None:
        self._follows, self._clock, self._log, self._slot, self.listens = follows, clock, log, slot, listens
        self._newest: Received | None = None  # message that waits
        self._free_ns = 0  # no message is followed before then
        self.counts: Counter[str] = Counter() if slot is None else slot.counts
        self.used = ""
        self.begin()

    def begin(self) -> None:
        """Ignore earlier chunks: at activation, and when the clock has jumped."""
        self._newest = None
        if self._slot is not None:
            self._slot.begin()

    @property
    def writer(self) -> str:
        """The node that writes the slot; empty while there is none, or it has written nothing."""
        return self._slot.writer if self._slot is not None else ""

    def poll(self) -> None:
        """Follow a new chunk in the slot."""
        if self._slot is None:
            return
        followed = self._slot.poll(self._follows.take)
        if self.used == SLOT and not self._slot.is_open:
            reason = self._slot.refused or f"the process that wrote chunk slot {self._slot.name} has ended"
            self._follows.lose_slot(reason)
            self._use("", f"the chunk slot is no longer used: {reason}")
        elif followed:
            self.counts["by slot"] += 1
            self._use(SLOT, f"chunks come from the slot of {self.writer}")

    def receive(self, received: Received, number: tuple[int, int]) -> None:
        """A message has come: follow it now or, if there is no time, later. number: its stamp and request."""
        if self.takes(number):
            self._newest = received
            self.follow_newest()

    def follow_newest(self) -> None:
        """Follow the message that waits, if there is one, and time for it; called at a fixed rate."""
        received, began_ns = self._newest, self._clock.monotonic_ns()
        if received is None or began_ns < self._free_ns:
            return
        self._newest = None
        self._follows.take(received)
        ended_ns = self._clock.monotonic_ns()
        if ended_ns - began_ns > LONG_NS:
            self._free_ns = 2 * ended_ns - began_ns

    def takes(self, number: tuple[int, int]) -> bool:
        """Whether to follow a message: not if the slot had the same chunk, or has a newer one."""
        if self._slot is None:
            return True
        self.poll()
        if self._clock.monotonic_ns() * 1e-9 - self._slot.came_s <= SILENT_S or number <= self._slot.last:
            self.counts["messages beside the slot"] += 1
            return False
        self._use(TOPIC, f"chunks come from action_chunk: {self.problem or 'the slot has nothing new'}")
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

    @property
    def summary(self) -> tuple[bool, str] | None:
        """Whether chunks come as they should, and from where; None if no slot is used."""
        if self._slot is None:
            return None
        fine = self.used == SLOT and self._slot.is_open
        if fine:
            return True, f"by the slot of {self.writer}"
        if self.listens:
            return True, f"by action_chunk: {self.problem or 'slot is silent'}"
        return False, self.problem or "no chunk has come yet"

    def _use(self, used: str, sentence: str) -> None:
        """Log a change of the source."""
        if self.used != used:
            self._log.append(("warning" if self.used == SLOT else "info", sentence))
        self.used = used
