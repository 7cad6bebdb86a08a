"""`vla fleet-trace`: what the robots of a fleet asked for, from bags of its topics, for `vla fleet-sim`.

Times are those of the recorders, which must have one clock, and what robots and scheduler told in seconds;
stamps of two machines are not compared. How many actions of a chunk were executed says the request of the
next round: how long it was executed and how many were left. A robot that stood already does not tell since
when, and nobody asks after the last round of a task: these chunks are taken as executed to their horizons.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.fleet.simulator import traces
from vla_accel_ros.fleet.simulator.traces import RecordedRound
from vla_accel_ros.tools.options import subcommand

if TYPE_CHECKING:
    from vla_accel_ros.recording.reader import Bag

REQUEST, ANSWER = "vla_accel_msgs/msg/FleetRequest", "vla_accel_msgs/msg/FleetAnswer"
TaskKey = tuple[str, str, int]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "fleet-trace", "what a fleet's robots asked for, from bags", run)
    parser.add_argument("bags", nargs="+", type=Path, metavar="BAG", help="of fleet/request and fleet/answer")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines (.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    """Read the bags, write the file. Raises ValueError where no chunk was answered."""
    rounds = read(arguments.bags)
    traces.save(arguments.out, rounds)
    print(f"{arguments.out}: {len(rounds)} rounds of {len({one.task for one in rounds})} tasks")
    return 0


@dataclass(frozen=True)
class _Asked:
    """An attempt. at_ns: recorded; sent_ns, age_s: of its observation then, by the robot's clock."""

    at_ns: int
    sent_ns: int
    age_s: float
    kind: str
    executed_s: float
    remaining: int


@dataclass(frozen=True)
class _Answered:
    at_ns: int
    attempt: int
    queued_s: float
    served_s: float
    chunk: int
    horizon: int
    step_s: float


@dataclass
class _Round:
    attempts: dict[int, list[_Asked]] = field(default_factory=dict)
    answer: _Answered | None = None

    @property
    def first(self) -> _Asked | None:
        """The attempt that came first."""
        every = [asked for of in self.attempts.values() for asked in of]
        return min(every, key=lambda asked: asked.at_ns, default=None)


def read(bags: Sequence[Path]) -> list[RecordedRound]:
    """The rounds that were answered with a chunk, of each task in order. Raises ValueError where there are
    none, or for a bag that is none or damaged."""
    from vla_accel_ros.recording.reader import Bag  # machines that only compute lack what it needs

    tasks: dict[TaskKey, dict[int, _Round]] = {}
    for path in bags:
        _note(Bag(path), tasks)
    asked_ns = [first.at_ns for of in tasks.values() for one in of.values() if (first := one.first)]
    rounds = [one for key, of in tasks.items() for one in _recorded(key, of, min(asked_ns, default=0))]
    if not rounds:
        named = ", ".join(map(str, bags))
        raise ValueError(
            f"{named}: no request was answered; record fleet/request and fleet/answer of every robot"
        )
    return sorted(rounds, key=lambda one: one.asked_s or 0.0)


def _note(bag: Bag, tasks: dict[TaskKey, dict[int, _Round]]) -> None:
    for entry in bag.entries({REQUEST, ANSWER}):
        message = bag.decode(entry)
        of = tasks.setdefault((message.robot, message.engine, message.task), {})
        one = of.setdefault(message.round, _Round())
        if entry.type == REQUEST:
            one.attempts.setdefault(message.attempt, []).append(_asked(message, entry.log_ns))
        elif not message.refusal and one.answer is None:
            one.answer = _answered(message, entry.log_ns)


def _asked(message: Any, at_ns: int) -> _Asked:
    sent_ns = _ns(message.header.stamp)
    age_s = max(0.0, (sent_ns - _ns(message.stamp)) * 1e-9)
    return _Asked(at_ns, sent_ns, age_s, message.instruction, message.executed_s, message.remaining)


def _answered(message: Any, at_ns: int) -> _Answered:
    chunk, times = message.chunk, (message.queued_s, message.served_s)
    horizon = chunk.execution_horizon or chunk.horizon
    return _Answered(at_ns, message.attempt, *times, chunk.horizon, horizon, chunk.step_dt_s)


def _recorded(key: TaskKey, of: dict[int, _Round], begin_ns: int) -> Iterator[RecordedRound]:
    """Of one task. begin_ns: of the first request of all."""
    robot, engine, task = key
    place = 0
    for number in sorted(of):
        first, answer = of[number].first, of[number].answer
        if first is None or answer is None:
            continue
        after = of.get(number + 1, _Round()).first
        seen = of[number].attempts.get(answer.attempt, [first])[-1]
        step_s = answer.step_s
        yield RecordedRound(
            f"{robot}/{engine[:8]}/{task}", first.kind, _executed(answer, after), answer.chunk, robot, place,
            asked_s=(first.at_ns - begin_ns) * 1e-9, left_s=first.remaining * step_s,
            queued_s=answer.queued_s, served_s=answer.served_s,
            age_s=max(0.0, seen.age_s + (answer.at_ns - seen.at_ns) * 1e-9), step_s=step_s,
        )  # fmt: skip
        place += 1


def _executed(answer: _Answered, after: _Asked | None) -> int:
    """How many actions of a chunk; see the module."""
    if after is None or after.executed_s < 0.0 or not after.remaining:
        return answer.horizon
    done = round(after.executed_s / answer.step_s) + after.remaining
    return max(1, min(done, answer.horizon))


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
