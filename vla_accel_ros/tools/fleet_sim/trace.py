"""`vla fleet-trace`: writes the requests of a fleet's robots, read from bags of its topics, for `vla
fleet-sim`.

Times are those of the recorders, which must share one clock, and durations that robots and scheduler report;
stamps of two machines are never compared. The next round's request tells how many actions of a chunk were
executed: for how long it ran, plus the actions left. Two cases lack that number: a robot that stood already
does not report since when, and the last round of a task has no successor. Their chunks count as executed to
their horizon.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.fleet.simulator import traces
from vla_accel_ros.fleet.simulator.traces import RecordedRound
from vla_accel_ros.tools.options import output_file, subcommand

if TYPE_CHECKING:
    from vla_accel_ros.recording.reader import Bag

REQUEST, ANSWER = "vla_accel_msgs/msg/FleetRequest", "vla_accel_msgs/msg/FleetAnswer"
TaskKey = tuple[str, str, int]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "fleet-trace", "write what a fleet's robots requested, read from bags", run
    )
    parser.add_argument(
        "bags", nargs="+", type=Path, metavar="BAG", help="bag of fleet/request and fleet/answer"
    )
    parser.add_argument("--out", type=output_file, required=True, metavar="FILE", help="JSON lines (.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    """Read the bags and write the file. Raises ValueError if no request was answered with a chunk."""
    rounds = read(arguments.bags)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    traces.save(arguments.out, rounds)
    print(f"{arguments.out}: {len(rounds)} rounds of {len({round_.task for round_ in rounds})} tasks")
    return 0


@dataclass(frozen=True)
class _Asked:
    """One attempt of a request. at_ns: when it was recorded; sent_ns: the robot's clock; age_s: age of its
    observation then."""

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
        """The attempt that was recorded first."""
        every = [request for attempts in self.attempts.values() for request in attempts]
        return min(every, key=lambda request: request.at_ns, default=None)


def read(bags: Sequence[Path]) -> list[RecordedRound]:
    """Return every round that was answered with a chunk, in order of time.

    Raises ValueError if there is none, or if a bag is missing or damaged.
    """
    from vla_accel_ros.recording.reader import Bag  # late: a machine that only computes may lack its packages

    tasks: dict[TaskKey, dict[int, _Round]] = {}
    for path in bags:
        _note(Bag(path), tasks)
    firsts = (round_.first for numbered in tasks.values() for round_ in numbered.values())
    start_ns = min((first.at_ns for first in firsts if first), default=0)
    rounds = [round_ for key, numbered in tasks.items() for round_ in _recorded(key, numbered, start_ns)]
    if not rounds:
        named = ", ".join(map(str, bags))
        raise ValueError(
            f"{named}: no request was answered; record fleet/request and fleet/answer of every robot"
        )
    return sorted(rounds, key=lambda round_: round_.asked_s or 0.0)


def _note(bag: Bag, tasks: dict[TaskKey, dict[int, _Round]]) -> None:
    for entry in bag.entries({REQUEST, ANSWER}):
        message = bag.decode(entry)
        of = tasks.setdefault((message.robot, message.engine, message.task), {})
        round_ = of.setdefault(message.round, _Round())
        if entry.type == REQUEST:
            round_.attempts.setdefault(message.attempt, []).append(_asked(message, entry.log_ns))
        elif not message.refusal and round_.answer is None:
            round_.answer = _answered(message, entry.log_ns)


def _asked(message: Any, at_ns: int) -> _Asked:
    sent_ns = _ns(message.header.stamp)
    age_s = max(0.0, (sent_ns - _ns(message.stamp)) * 1e-9)
    return _Asked(at_ns, sent_ns, age_s, message.instruction, message.executed_s, message.remaining)


def _answered(message: Any, at_ns: int) -> _Answered:
    chunk, times = message.chunk, (message.queued_s, message.served_s)
    horizon = chunk.execution_horizon or chunk.horizon
    return _Answered(at_ns, message.attempt, *times, chunk.horizon, horizon, chunk.step_dt_s)


def _recorded(key: TaskKey, of: dict[int, _Round], begin_ns: int) -> Iterator[RecordedRound]:
    """Yield the rounds of one task. begin_ns: when the first request of all bags was recorded."""
    robot, engine, task = key
    index = 0
    for number in sorted(of):
        first, answer = of[number].first, of[number].answer
        if first is None or answer is None:
            continue
        following = of.get(number + 1, _Round()).first
        request = of[number].attempts.get(answer.attempt, [first])[-1]
        step_s = answer.step_s
        yield RecordedRound(
            f"{robot}/{engine[:8]}/{task}", first.kind, _executed(answer, following), answer.chunk,
            robot, index, asked_s=(first.at_ns - begin_ns) * 1e-9, left_s=first.remaining * step_s,
            queued_s=answer.queued_s, served_s=answer.served_s,
            age_s=max(0.0, request.age_s + (answer.at_ns - request.at_ns) * 1e-9), step_s=step_s,
        )  # fmt: skip
        index += 1


def _executed(answer: _Answered, after: _Asked | None) -> int:
    """Return how many actions of a chunk were executed; see the module's docstring."""
    if after is None or after.executed_s < 0.0 or not after.remaining:
        return answer.horizon
    done = round(after.executed_s / answer.step_s) + after.remaining
    return max(1, min(done, answer.horizon))


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
