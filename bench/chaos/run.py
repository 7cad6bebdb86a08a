"""The kills: which process dies when, and how long each robot that needs it takes to go on."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.fleet import Fleet
from vla_accel_msgs.msg import Motion

SCHEDULER, INFERENCE, TRAJECTORY, VANISHES = "scheduler", "inference", "trajectory", "vanishes"
KINDS = {SCHEDULER: 3, INFERENCE: 7, TRAJECTORY: 6, VANISHES: 4}
SPARED_SHARE = 0.35
"""Number of last kills that spare the scheduler, so that what it keeps of robots shows."""
AT_ONCE = 0.4
"""Share of kills that are followed by the next at once."""
GONE_S = (1.0, 9.0)
PATIENCE_S = 40.0
HEARD_S = 3.0
"""Within which, once all that it needs is ready, a robot moves by a new chunk, or holds and says why."""
MOVES_S = 15.0
"""Within which it moves, also where the machine has other work and the network loses what was told."""


@dataclass
class Kill:
    """One kill -9. mid_request: its robot waited for an answer. up_s: until the process was restarted;
    ready_s: from then until its first message; resumed_s: from when everything that a robot needs had sent a
    message until each affected robot moved by a new chunk, None if one did not; silent: robots that neither
    moved nor said why within HEARD_S of that. stood: robots that stopped meanwhile; said: their first
    reasons; moves_after_s: the longest motion of one of them on old chunks. others: unaffected robots that
    stopped."""

    kind: str
    at_s: float
    victim: str
    killed_ns: int = 0
    mid_request: bool = False
    up_s: float = 0.0
    ready_s: float | None = None
    resumed_s: dict[str, float | None] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    stood: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    moves_after_s: float = 0.0
    others: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Planned:
    """robot: by number. share: of GONE_S that it stays away if it vanishes. at_once: the next kill comes
    before anybody goes on."""

    kind: str
    robot: int
    share: float = 0.0
    at_once: bool = False


def plan(kills: int, seed: int, robots: int) -> list[Planned]:
    """Draw random kills. The last robot is never a victim."""
    rng, planned = random.Random(seed), []
    for number in range(kills):
        kinds = dict(KINDS)
        if number >= kills * (1.0 - SPARED_SHARE):
            kinds.pop(SCHEDULER)
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        robot, share = rng.randrange(max(1, robots - 1)), rng.random()
        planned.append(Planned(kind, robot, share, rng.random() < AT_ONCE))
    return planned


def play(
    fleet: Fleet,
    planned: Sequence[Planned],
    seed: int,
    pause_s: float,
    most_s: float = math.inf,
    patience_s: float = PATIENCE_S,
) -> list[Kill]:
    """Do all kills, or as many as begin within most_s; the fleet must move. pause_s: approximate pause after
    all robots go on. patience_s: time allowed for them to go on."""
    rng, began_s = random.Random(seed + 1), time.monotonic()
    names, done, open_ = list(fleet.robots), list[Kill](), list[tuple[Kill, int]]()
    for plan in planned:
        kill = _kill(fleet, plan.kind, names[plan.robot], plan.share, began_s)
        open_.append((kill, time.monotonic_ns()))
        done.append(kill)
        is_late = time.monotonic() - began_s > most_s
        if plan.at_once and plan is not planned[-1] and not is_late:
            continue
        for kill, since_ns in open_:
            _measure(fleet, kill, since_ns, patience_s)
        open_ = []
        _tell(f"{len(done)}/{len(planned)} {asdict(kill)}")
        if is_late:
            break
        fleet.until(lambda: False, pause_s * (0.5 + rng.random()))
    return done


def _kill(fleet: Fleet, kind: str, robot: str, share: float, began_s: float) -> Kill:
    name = SCHEDULER if kind == SCHEDULER else f"{robot}/{INFERENCE if kind == VANISHES else kind}"
    process = fleet.processes[name]
    fleet.until(lambda: process.alive, 30.0)
    if kind in (SCHEDULER, VANISHES):  # while somebody waits for an answer, where that comes soon
        asking = fleet.robots if kind == SCHEDULER else (robot,)
        fleet.until(lambda: any(map(fleet.network.in_flight, asking)), 3.0)
    kill = Kill(kind, time.monotonic() - began_s, name)
    kill.killed_ns, kill.mid_request = time.monotonic_ns(), fleet.network.in_flight(robot)
    if kind == VANISHES:
        fleet.network.wanted.discard(robot)
        process.wanted = False
        process.kill()
        fleet.until(lambda: False, GONE_S[0] + share * (GONE_S[1] - GONE_S[0]))
        fleet.network.wanted.add(robot)
        process.wanted = True
    else:
        process.kill()
    return kill


def look_back(fleet: Fleet, kills: list[Kill]) -> None:
    """Record how long robots kept moving after each kill; call it after `judge`."""
    for kill in kills:
        kill.moves_after_s = max(fleet.robots[name].moves_after_s(kill.killed_ns) for name in kill.resumed_s)


def _measure(fleet: Fleet, kill: Kill, since_ns: int, patience_s: float) -> None:
    """Wait until all robots that need the process go on."""
    process = fleet.processes[kill.victim]
    fleet.until(lambda: process.alive, 30.0)
    up_ns = max(process.starts_ns[-1], since_ns)
    kill.up_s = (up_ns - since_ns) * 1e-9
    ours = list(fleet.robots) if kill.kind == SCHEDULER else [kill.victim.rpartition("/")[0]]
    fleet.until(lambda: fleet.moving(dict.fromkeys(ours, up_ns)), patience_s)
    said_ns = ready_ns(fleet, kill.victim, up_ns)
    kill.ready_s = None if said_ns is None else (said_ns - up_ns) * 1e-9
    for name, robot in fleet.robots.items():
        changes = [change for change in robot.told if change[0] >= since_ns]
        stopped = any(state != Motion.RUNNING for _, state, _ in changes)
        if name not in ours:
            kill.others += [name] * stopped
            continue
        moved_ns, whole_ns = robot.goes_on_ns(up_ns), _whole_ns(fleet, name, up_ns)
        kill.resumed_s[name] = None if moved_ns is None else max(0.0, (moved_ns - whole_ns) * 1e-9)
        heard_ns = whole_ns + round(HEARD_S * 1e9)
        is_late = moved_ns is None or moved_ns > heard_ns
        kill.silent += [name] * (is_late and robot.is_silent(heard_ns))
        kill.stood += [name] * stopped
        kill.said += [reason for _, _, reasons in changes for reason in reasons][:2]


def _whole_ns(fleet: Fleet, robot: str, since_ns: int) -> int:
    """When all that a robot needs had said something: what was started again since then too, or shortly
    before."""
    needed = (fleet.scheduler, *(f"{robot}/{kind}" for kind in (INFERENCE, TRAJECTORY)))
    said_ns = [since_ns]
    for name in needed:
        started_ns = fleet.processes[name].starts_ns[-1]
        said_ns.append(ready_ns(fleet, name, started_ns) or since_ns)
    return max(said_ns)


def ready_ns(fleet: Fleet, victim: str, since_ns: int) -> int | None:
    """Return when the restarted process first published to its robots, to the scheduler, or on `motion`."""
    robot, _, kind = victim.rpartition("/")
    if kind == TRAJECTORY:
        heard = [time_ns for time_ns, *_ in fleet.robots[robot].told]
    elif victim == fleet.scheduler:
        heard = [
            time_ns for name in fleet.robots for time_ns in fleet.network.begun.get((name, "admission"), ())
        ]
    else:
        heard = fleet.network.begun.get((robot, "robot"), [])
    return min((time_ns for time_ns in heard if time_ns >= since_ns), default=None)


def report(kills: list[Kill]) -> dict[str, Any]:
    """Return, for each kind of kill, its number, the number during a request, and quantiles of the times."""
    rows: dict[str, Any] = {}
    for kind in KINDS:
        ours = [kill for kill in kills if kill.kind == kind]
        times = sorted(s for kill in ours for s in kill.resumed_s.values() if s is not None)
        ready = sorted(kill.up_s + kill.ready_s for kill in ours if kill.ready_s is not None)
        rows[kind] = {
            "kills": len(ours),
            "mid_request": sum(kill.mid_request for kill in ours),
            "stood": sum(bool(kill.stood) for kill in ours),
            "others_stood": sum(bool(kill.others) for kill in ours),
            "stuck": sum(s is None for kill in ours for s in kill.resumed_s.values()),
            "silent": sum(len(kill.silent) for kill in ours),
            "ready_s": {"p50": _at(ready, 0.5), "p99": _at(ready, 0.99), "max": _at(ready, 1.0)},
            "moves_after_s": round(max((kill.moves_after_s for kill in ours), default=0.0), 2),
            "goes_on_s": {"p50": _at(times, 0.5), "p99": _at(times, 0.99), "max": _at(times, 1.0)},
        }
    return rows


def _at(times: list[float], share: float) -> float | None:
    return round(times[min(len(times) - 1, int(share * len(times)))], 2) if times else None


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
