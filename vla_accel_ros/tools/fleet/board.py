"""What the nodes of a fleet say of themselves in /diagnostics, gathered into a row for each robot.

The scheduler tells of each robot it knows, and the robot's own nodes tell of themselves, once a second. What
has not been repeated for SILENT_S is shown as silence, with its length. Nothing else is read, so the table is
true of any fleet in the domain. No ROS: lines are DiagnosticStatus, or whatever has its fields.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

SILENT_S = 3.0
_LINE = re.compile(r"(?:(?P<namespace>.+)/)?(?P<node>[^/:]+): (?P<item>.+)")
_SCHEDULER, _INFERENCE, _TRAJECTORY = "fleet_scheduler", "inference", "trajectory"


class Pair(Protocol):
    """As diagnostic_msgs/KeyValue."""

    key: str
    value: str


class Line(Protocol):
    """As diagnostic_msgs/DiagnosticStatus."""

    name: str
    message: str

    @property
    def values(self) -> Sequence[Pair]:
        """What it measured."""


@dataclass(frozen=True)
class Row:
    """One robot. state: what the scheduler does for it, and why not more. motion: what its arm does, and why
    it stands. Times in seconds; rate_hz: chunks a second that it was promised; None is what nobody tells.
    stalled_s: how long the arm has stood for want of a chunk, since the board began to look."""

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
    """Whether it is served, and moves or may."""


@dataclass(frozen=True)
class Scheduler:
    """What serves the fleet. said: how it is; promised_hz, possible_hz: chunks a second; replicas: their
    names."""

    said: str
    policy: str = ""
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
    """Takes lines as they come; `rows` and `scheduler` are what is known at a time. Times are of one clock
    that never goes back."""

    _lines: dict[tuple[str, str, str], _Heard] = field(default_factory=dict)
    _stalled: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def hear(self, lines: Iterable[Line], now_s: float) -> None:
        """Of one message. What is of no node of a fleet is left out."""
        for line in lines:
            match = _LINE.fullmatch(line.name)
            if match is None or match["node"] not in (_SCHEDULER, _INFERENCE, _TRAJECTORY):
                continue
            key = f"/{match['namespace'] or ''}", match["node"], match["item"]
            values = {pair.key: pair.value for pair in line.values}
            before, self._lines[key] = self._lines.get(key), _Heard(line.message, values, now_s)
            if key[1:] == (_INFERENCE, "fleet") and (stalled := _number(values, "stalled [s]")) is not None:
                counted = _number(before.values, "stalled [s]") if before is not None else None
                # Begins anew with each task.
                self._stalled[key[0]] += stalled - counted if counted and counted <= stalled else stalled

    def robots(self) -> list[str]:
        """All that were ever heard of, by namespace."""
        own = {space for space, node, item in self._lines if node == _INFERENCE and item == "fleet"}
        served = {
            item.removeprefix("robot ")
            for _, node, item in self._lines
            if node == _SCHEDULER and item.startswith("robot ")
        }
        return sorted(own | served)

    def rows(self, now_s: float) -> list[Row]:
        """One for each robot, by name."""
        return [self._row(robot, now_s) for robot in self.robots()]

    def scheduler(self, now_s: float) -> Scheduler:
        """What serves them."""
        own = {item: heard for (_, node, item), heard in self._lines.items() if node == _SCHEDULER}
        last_s = max((heard.at_s for heard in own.values()), default=None)
        if last_s is None:
            return Scheduler("not heard yet")
        if now_s - last_s > SILENT_S:
            return Scheduler(f"silent for {now_s - last_s:.0f} s")
        now = {item: heard for item, heard in own.items() if now_s - heard.at_s <= SILENT_S}
        queue = now.get("queue")
        if queue is None:
            return Scheduler("; ".join(heard.message for heard in now.values()))
        return Scheduler(
            queue.message,
            queue.values.get("policy", ""),
            _number(queue.values, "chunks promised [1/s]"),
            _number(queue.values, "chunks possible [1/s]"),
            tuple(sorted(item.removeprefix("replica ") for item in now if item.startswith("replica "))),
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
        found = [heard for (_, n, i), heard in self._lines.items() if (n, i) == (node, item)]
        return max(found, key=lambda heard: heard.at_s, default=None)


def _number(values: dict[str, str], key: str) -> float | None:
    try:
        return float(values[key])
    except (KeyError, ValueError):
        return None


def _count(values: dict[str, str], key: str) -> int | None:
    """Counts that are 0 are not told."""
    number = _number(values, key) if values else None
    return (0 if number is None else int(number)) if values else None
