"""The messages of one robot in order of their arrival, and what was known at any time of them.

Live and recorded messages have the same fields, so both are kept alike. A live scene keeps the last minute. A
committed action is one that no later chunk replaces: it is due already, or the chunk says that it would be
on its own arrival.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.engine.session import Session
from vla_accel_ros.extensions import controller_kind
from vla_accel_ros.recording.robots import contract_of, of_robot
from vla_accel_ros.tools.bags import (
    CHUNK,
    JOINTS,
    MOTION,
    OBSERVED,
    POSITIONS,
    STRING,
    TEXT,
    TRAJECTORY,
    stamp_ns,
    trajectory_of,
)

DIAGNOSTICS, LOOP = "diagnostic_msgs/msg/DiagnosticArray", "vla_accel_msgs/msg/LoopStats"
STATES = {1: "running", 2: "stopping", 3: "holding", 4: "released", 5: "human", 6: "aligning"}
S = 1_000_000_000
WINDOW_NS = 8 * S
"""The past that traces show."""
POINTS = 160
"""Most points of a trace."""
CHUNKS, EVENTS = 3, 6
"""How many of the newest chunks, and changes of state, are shown."""
T = TypeVar("T")


@dataclass
class Track(Generic[T]):
    """Values by the time of their arrival in nanoseconds. limit: how many of the newest are kept."""

    limit: int | None = None
    times_ns: list[int] = field(default_factory=list)
    values: list[T] = field(default_factory=list)

    def add(self, time_ns: int, value: T) -> None:
        """Append a value; one that is older than the last takes its time."""
        self.times_ns.append(max(time_ns, self.times_ns[-1]) if self.times_ns else time_ns)
        self.values.append(value)
        if self.limit is not None and len(self.values) > 2 * self.limit:
            del self.times_ns[: -self.limit], self.values[: -self.limit]

    def at(self, time_ns: int) -> T | None:
        """The newest value then."""
        i = bisect_right(self.times_ns, time_ns)
        return self.values[i - 1] if i else None

    def between(self, from_ns: int, to_ns: int) -> list[T]:
        """The values of a time, both ends included."""
        return self.values[bisect_left(self.times_ns, from_ns) : bisect_right(self.times_ns, to_ns)]

    def last(self, count: int, time_ns: int) -> list[T]:
        """The newest values then, the newest last."""
        i = bisect_right(self.times_ns, time_ns)
        return self.values[max(0, i - count) : i]


@dataclass(frozen=True)
class Planned:
    """A chunk as it arrived. actions: float64 [H, D] in the contract's order of joints, nan for a joint that
    it does not move. executed: leading actions that may be executed. delay: of these, how many were past when
    it arrived."""

    number: int
    stamp_ns: int
    arrived_ns: int
    times_ns: np.ndarray
    actions: np.ndarray
    executed: int
    delay: int
    inference_s: float

    def committed(self, time_ns: int) -> int:
        """How many leading actions no later chunk replaces."""
        return max(self.delay, int(np.searchsorted(self.times_ns, time_ns, side="right")))


class Scene:
    """What is known of a robot. namespace: the robot's. most: entries kept of each stream, None for all.

    `topics` says which messages it takes: name below the namespace -> (type, what takes a message and the
    time of its arrival). `unreadable`: a sentence about the last message that could not be taken.
    """

    def __init__(self, session: Session, namespace: str = "", most: int | None = None) -> None:
        self.session, self.contract, self._namespace = session, contract_of(session), namespace
        names = self.contract.joint_names
        self._columns = {name: column for column, name in enumerate(names)}
        self._positions = np.full(len(names), np.nan)
        self.unreadable = ""
        self.joints = Track[tuple[int, np.ndarray]](most)
        self.commands = {
            controller.topic: Track[Trajectory](most) for controller in self.contract.controllers
        }
        self.commanded = Track[tuple[int, np.ndarray]](most)
        self.chunks, self.motions, self.texts = Track[Planned](most), Track[Any](most), Track[Any](most)
        self.told, self.observed = Track[str](most), Track[Any](most)
        self.loops: dict[str, Track[Any]] = {}
        self.lines: dict[str, Track[Any]] = {}
        self._most = most
        self.topics: dict[str, tuple[str, Callable[[Any, int], None]]] = {
            self.contract.joint_states.topic: (JOINTS, self._take_joints),
            "action_chunk": (CHUNK, self._take_chunk),
            "motion": (MOTION, lambda message, at_ns: self.motions.add(at_ns, message)),
            "language_output": (TEXT, lambda message, at_ns: self.texts.add(at_ns, message)),
            "instruction": (STRING, lambda message, at_ns: self.told.add(at_ns, message.data)),
            "observed": (OBSERVED, lambda message, at_ns: self.observed.add(at_ns, message)),
            "loop_stats": (LOOP, self._take_loop),
            "/diagnostics": (DIAGNOSTICS, self._take_diagnostics),
        }
        for controller in self.contract.controllers:
            kind = controller_kind(controller.kind).message
            take = partial(self._take_command, controller.topic, controller.joints, kind == TRAJECTORY)
            if kind in (TRAJECTORY, POSITIONS):
                self.topics[controller.topic] = kind, take

    def take(self, topic: str, message: Any, at_ns: int) -> None:
        """Take a message that arrived then; what cannot be used is only noted."""
        try:
            self.topics[topic][1](message, at_ns)
        except (ValueError, IndexError) as error:
            self.unreadable = f"{topic}: {error}"

    def moment(self, at_ns: int) -> dict[str, Any]:
        """What was known at a time, for JSON; arrays are float32 in base64, times in seconds from then."""
        motion, text = self.motions.at(at_ns), self.texts.at(at_ns)
        frame = self.observed.at(at_ns)
        lines = {name: line for name, track in self.lines.items() if (line := track.at(at_ns)) is not None}
        loops = [loop for track in self.loops.values() if (loop := track.at(at_ns)) is not None]
        measured = self.joints.between(at_ns - WINDOW_NS, at_ns)
        return {
            "state": "" if motion is None else STATES.get(motion.state, str(motion.state)),
            "reasons": [] if motion is None else list(motion.reasons),
            "mode": "" if motion is None else motion.mode,
            "events": [
                [_s(stamp_ns(m.header.stamp) - at_ns), STATES.get(m.state, ""), "; ".join(m.reasons)]
                for m in self.motions.last(EVENTS, at_ns)
            ],
            "instruction": self.told.at(at_ns) or ("" if frame is None else frame.instruction),
            "answer": text
            and {
                **{name: getattr(text, name, False) for name in ("prompt", "text", "finished", "refused")},
                "age_s": _s(at_ns - stamp_ns(text.header.stamp)),
            },
            "measured": _trace(measured, at_ns),
            "joints_age_s": _s(at_ns - measured[-1][0]) if measured else None,
            "commanded": _trace(self.commanded.between(at_ns - WINDOW_NS, at_ns), at_ns),
            "sent": self._sent(at_ns),
            "chunks": [self._chunk(chunk, at_ns) for chunk in self.chunks.last(CHUNKS, at_ns)],
            "loops": [
                [m.loop, *map(_finite, (m.measured_hz, m.target_hz, m.p50_s, m.p99_s)), m.misses]
                for m in loops
            ],
            "lines": [
                [name, level_of(line), line.message, {pair.key: pair.value for pair in line.values}]
                for name, line in sorted(lines.items())
            ],
            "unreadable": self.unreadable,
        }

    def robot(self) -> dict[str, Any]:
        """What does not change, for JSON."""
        return {
            "name": self.contract.robot,
            "namespace": self._namespace or "/",
            "model": self.session.model,
            "device": self.session.device,
            "joints": [[j.name, j.lower, j.upper] for j in self.contract.joints],
        }

    def _sent(self, at_ns: int) -> list[dict[str, Any]]:
        """What each controller was sent last, as far as it lies ahead."""
        newest = [t for track in self.commands.values() if (t := track.at(at_ns)) is not None]
        return [
            {
                "joints": [self._columns[name] for name in trajectory.joints],
                "times": packed((trajectory.times_ns - at_ns) * 1e-9),
                "positions": packed(trajectory.positions.T),
            }
            for trajectory in newest
            if trajectory.end_ns >= at_ns
        ]

    def _chunk(self, chunk: Planned, at_ns: int) -> dict[str, Any]:
        return {
            "number": chunk.number,
            "age_s": _s(at_ns - chunk.stamp_ns),
            "arrived_s": _s(chunk.arrived_ns - chunk.stamp_ns),
            "inference_s": _finite(chunk.inference_s),
            "executed": chunk.executed,
            "committed": chunk.committed(at_ns),
            "times": packed((chunk.times_ns - at_ns) * 1e-9),
            "actions": packed(chunk.actions.T),
        }

    def _take_joints(self, message: Any, at_ns: int) -> None:
        for name, position in zip(message.name, message.position):
            if name in self._columns:
                self._positions[self._columns[name]] = position
        self.joints.add(at_ns, (stamp_ns(message.header.stamp) or at_ns, self._positions.copy()))

    def _take_chunk(self, message: Any, at_ns: int) -> None:
        shape = message.horizon, message.action_dim
        raw = np.array(message.actions, np.float64).reshape(shape)
        actions = np.full((message.horizon, len(self._columns)), np.nan)
        for column, name in enumerate(message.joint_names):
            if name in self._columns:
                actions[:, self._columns[name]] = raw[:, column]
        stamp = stamp_ns(message.header.stamp)
        steps = np.arange(1, message.horizon + 1) * message.step_dt_s
        self.chunks.add(
            at_ns,
            Planned(
                message.request_id,
                stamp,
                at_ns,
                stamp + np.round(steps * S).astype(np.int64),
                actions,
                message.execution_horizon or message.horizon,
                message.agreed_delay,
                message.inference_s,
            ),
        )

    def _take_command(
        self, topic: str, joints: tuple[str, ...], whole: bool, message: Any, at_ns: int
    ) -> None:
        if whole:
            trajectory = trajectory_of(message, at_ns).select(joints)
        else:
            trajectory = Trajectory(joints, np.array([at_ns]), np.array([message.data]))
        self.commands[topic].add(at_ns, trajectory)
        positions = np.full(len(self._columns), np.nan) if not self.commanded.values else self._last()
        positions[[self._columns[name] for name in joints]] = trajectory.sample(at_ns)[0]
        self.commanded.add(at_ns, (at_ns, positions))

    def _last(self) -> np.ndarray:
        return self.commanded.values[-1][1].copy()

    def _take_loop(self, message: Any, at_ns: int) -> None:
        self.loops.setdefault(message.loop, Track(self._most)).add(at_ns, message)

    def _take_diagnostics(self, message: Any, at_ns: int) -> None:
        for name, line in of_robot(self._namespace, message.status).items():
            self.lines.setdefault(name, Track(self._most)).add(at_ns, line)


def level_of(line: Any) -> int:
    """The level of a line of diagnostics: 0 fine, 1 warning, 2 error; a byte if live."""
    return line.level[0] if isinstance(line.level, bytes) else int(line.level)


def packed(values: np.ndarray) -> str:
    """Numbers as little-endian float32 in base64."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def _trace(samples: list[tuple[int, np.ndarray]], at_ns: int) -> Mapping[str, str]:
    """Times [N] and positions [D, N] of samples, of many only some and the last."""
    samples = samples[:: -max(1, -(-len(samples) // POINTS))][::-1]
    times = np.array([time_ns - at_ns for time_ns, _ in samples], np.float64) * 1e-9
    return {"times": packed(times), "positions": packed(np.array([row for _, row in samples]).T)}


def _s(time_ns: int) -> float:
    return round(time_ns * 1e-9, 4)


def _finite(value: float) -> float | None:
    """JSON has no other numbers."""
    return round(value, 5) if np.isfinite(value) else None
