"""Gathers the /diagnostics of a fleet's nodes into one row for each robot.

Once a second the scheduler reports each robot that it knows, and each robot's nodes report themselves. A line
that was not repeated for SILENT_S is shown as silence, with its length. The board reads no other topic, so it
works for any fleet in the ROS domain. It imports no ROS: a line is a DiagnosticStatus or anything with its
fields.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

SILENT_S = 3.0
LINE = re.compile(r"(?:(?P<namespace>.+)/)?(?P<node>[^/:]+): (?P<item>.+)")
_SCHEDULER, _INFERENCE, _TRAJECTORY = "fleet_scheduler", "inference", "trajectory"


class Pair(Protocol):
    """The fields of diagnostic_msgs/KeyValue."""

    key: str
    value: str


class Line(Protocol):
    """The fields of diagnostic_msgs/DiagnosticStatus."""

    name: str
    message: str

    @property
    def values(self) -> Sequence[Pair]:
        """The measured values, by name."""


@dataclass(frozen=True)
class Row:
    """One robot's row. None stands for a value that no node reported.

    state: how the scheduler serves the robot, or why it does not. motion: what the arm does, or why it
    stands. buffer_s, queued_s, age_s: seconds of motion left, in the queue, and of the observation's age.
    stalled_s: seconds that the arm stood without a chunk since the board began to listen. rate_hz: chunks a
    second that the scheduler admitted. answered, missed: chunks.
    """

    robot: str
    state: str
    motion: str
    buffer_s: float | None = None
    queued_s: float | None = None
    age_s: float | None = None
    wait_ratio: float | None = None
    stalled_s: float | None = None
    rate_hz: float | None = None
    answered: int | None = None
    missed: int | None = None
    well: bool = False
    """Whether the robot is served and its arm is running."""


@dataclass(frozen=True)
class Scheduler:
    """The scheduler's state. said: its message; promised_hz, possible_hz: admitted and possible chunks a
    second; replicas: their names."""

    said: str
    rule: str = ""
    promised_hz: float | None = None
    possible_hz: float | None = None
    replicas: tuple[str, ...] = ()
    well: bool = False


@dataclass
class _Heard:
    message: str
    values: dict[str, str]
    at_s: float


@dataclass
class Board:
    """Takes diagnostics lines as they arrive; `rows` and `scheduler` return the state at a time. All times
    are seconds of one monotonic clock."""

    _lines: dict[tuple[str, str, str], _Heard] = field(default_factory=dict)
    _stalled: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def hear(self, lines: Iterable[Line], now_s: float) -> None:
        """Take the lines of one message; ignore those of other nodes."""
        for line in lines:
            match = LINE.fullmatch(line.name)
            if match is None or match["node"] not in (_SCHEDULER, _INFERENCE, _TRAJECTORY):
                continue
            key = f"/{match['namespace'] or ''}", match["node"], match["item"]
            values = {pair.key: pair.value for pair in line.values}
            previous, self._lines[key] = self._lines.get(key), _Heard(line.message, values, now_s)
            if key[1:] == (_INFERENCE, "fleet") and (stalled := _number(values, "stalled [s]")) is not None:
                counted = _number(previous.values, "stalled [s]") if previous is not None else None
                # The node's count begins at 0 with each task.
                self._stalled[key[0]] += stalled - counted if counted and counted <= stalled else stalled

    def robots(self) -> list[str]:
        """Return the namespaces of all robots heard so far, sorted."""
        robots = {space for space, node, item in self._lines if node == _INFERENCE and item == "fleet"}
        served = {
            item.removeprefix("robot ")
            for _, node, item in self._lines
            if node == _SCHEDULER and item.startswith("robot ")
        }
        return sorted(robots | served)

    def rows(self, now_s: float) -> list[Row]:
        """Return one row for each robot, sorted by namespace."""
        return [self._row(robot, now_s) for robot in self.robots()]

    def scheduler(self, now_s: float) -> Scheduler:
        """Return the scheduler's state at `now_s`."""
        reports = {item: heard for (_, node, item), heard in self._lines.items() if node == _SCHEDULER}
        last_s = max((heard.at_s for heard in reports.values()), default=None)
        if last_s is None:
            return Scheduler("not heard yet")
        if now_s - last_s > SILENT_S:
            return Scheduler(f"silent for {now_s - last_s:.0f} s")
        recent = {item: heard for item, heard in reports.items() if now_s - heard.at_s <= SILENT_S}
        queue = recent.get("queue")
        if queue is None:
            return Scheduler("; ".join(heard.message for heard in recent.values()))
        return Scheduler(
            queue.message,
            queue.values.get("rule", ""),
            _number(queue.values, "chunks promised [1/s]"),
            _number(queue.values, "chunks possible [1/s]"),
            tuple(sorted(item.removeprefix("replica ") for item in recent if item.startswith("replica "))),
            well=True,
        )

    def _row(self, robot: str, now_s: float) -> Row:
        known = self._newest(_SCHEDULER, f"robot {robot}")
        asks = self._lines.get((robot, _INFERENCE, "fleet"))
        moves = self._lines.get((robot, _TRAJECTORY, "motion"))
        served = known is not None and now_s - known.at_s <= SILENT_S
        state = known.message if known is not None and served else "unknown to the scheduler"
        if not self.scheduler(now_s).well:
            state = "no scheduler"
        if asks is not None and now_s - asks.at_s > SILENT_S:
            state = f"robot silent for {now_s - asks.at_s:.0f} s"
        values = known.values if known is not None and served else {}
        motion, moving = "not heard yet", False
        if moves is not None:
            moving = now_s - moves.at_s <= SILENT_S
            motion = moves.message if moving else f"silent for {now_s - moves.at_s:.0f} s"
        return Row(
            robot,
            state,
            motion,
            _number(values, "buffer [s]"),
            _number(values, "queue wait [s]"),
            _number(values, "observation age [s]"),
            _number(values, "wait ratio"),
            self._stalled[robot] if asks is not None else _number(values, "stalled [s]"),
            _number(values, "chunks promised [1/s]"),
            _count(values, "answered"),
            _count(values, "misses"),
            well=served and not state.startswith(("refused", "robot")) and motion == "running",
        )

    def _newest(self, node: str, item: str) -> _Heard | None:
        reports = [heard for (_, n, i), heard in self._lines.items() if (n, i) == (node, item)]
        return max(reports, key=lambda heard: heard.at_s, default=None)


def _number(values: dict[str, str], key: str) -> float | None:
    try:
        return float(values[key])
    except (KeyError, ValueError):
        return None


def _count(values: dict[str, str], key: str) -> int | None:
    """Return a count, 0 where the node left it out, or None without any values: nodes do not report counts of
    0."""
    number = _number(values, key) if values else None
    return (0 if number is None else int(number)) if values else None
