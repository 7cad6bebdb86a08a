"""Where the clock of a recorder was set: a simulator was reset, or a time service corrected the computer.

Times before and after such a jump have nothing to do with each other, although they may be equal. So whoever
reads a bag by time reads it in parts. A recorder that is late writes in order all the same, so that only a
clock that was set makes the times of a bag go back, or ahead by more than a silence of all topics may last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from vla_accel_ros.recording.reader import Bag, Entry

BACK_NS = 500_000_000
AHEAD_NS = 60_000_000_000


def jump_ns(before_ns: int | None, log_ns: int) -> int:
    """By how much the clock was set between two messages, given the latest time so far; 0 if it was not."""
    if before_ns is None:
        return 0
    passed_ns = log_ns - before_ns
    return 0 if -BACK_NS <= passed_ns <= AHEAD_NS else passed_ns


@dataclass(frozen=True)
class Part:
    """The messages of a bag between two jumps of its clock. number: counts from 0. by_ns: the jump before
    it."""

    bag: Bag
    number: int
    by_ns: int

    def entries(self, types: Collection[str]) -> Iterator[Entry]:
        """The messages of these types. Raises as Bag.entries does."""
        for number, _, entry in numbered(self.bag):
            if number > self.number:
                return
            if number == self.number and entry.type in types:
                yield entry

    def has(self, stamp_ns: int, log_ns: int) -> bool:
        """Whether a message with this stamp is of this part's clock. One that was on its way when the clock
        was set is not."""
        age_ns = log_ns - stamp_ns
        return abs(age_ns) <= abs(age_ns - self.by_ns)


def parts(bag: Bag) -> list[Part]:
    """The parts of a bag, in order; at least one. Raises as Bag.entries does."""
    bag_parts = [Part(bag, 0, 0)]
    for number, by_ns, _ in numbered(bag):
        if number == len(bag_parts):
            bag_parts.append(Part(bag, number, by_ns))
    return bag_parts


def numbered(bag: Bag) -> Iterator[tuple[int, int, Entry]]:
    """Yield all messages with the number of their part, and the jump before it. Raises as Bag.entries
    does."""
    number, by_ns, latest_ns = 0, 0, None
    for entry in bag.entries():
        jumped_ns = jump_ns(latest_ns, entry.log_ns)
        if jumped_ns:
            number, by_ns, latest_ns = number + 1, jumped_ns, None
        latest_ns = entry.log_ns if latest_ns is None else max(latest_ns, entry.log_ns)
        yield number, by_ns, entry
