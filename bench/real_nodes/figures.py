"""Evaluates the nodes' timelines for the frames of several windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vla_accel_ros.timeline import Event, Recorded
from vla_accel_ros.tools.trace import latency

REACHED = {
    "arrival": "arrived",
    "observation": "observed",
    "prefix": "prefix",
    "chunk": "published",
    "command": "commanded",
}
"""Names of figures -> moments of `vla trace`."""
TAIL_NS = 250_000_000
"""Frames at the end of a window whose commands may come after it are left out."""


@dataclass(frozen=True)
class Window:
    """Times of the monotonic clock, by which ROS time is ahead_ns later. records: what each node did."""

    begin_ns: int
    end_ns: int
    ahead_ns: int
    records: Sequence[Recorded]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.begin_ns) * 1e-9

    def ended(self, name: str, track: str) -> np.ndarray:
        """When events of this name, on tracks that end so, ended in it: int64 [N], sorted."""
        events = (event for record in self.records for event in record.events)
        return np.array(sorted(e.end_ns for e in events if self._has(e, name, track)), np.int64)

    def _has(self, event: Event, name: str, track: str) -> bool:
        within = self.begin_ns <= event.end_ns < self.end_ns
        return within and event.name == name and event.track.endswith(track)


def window(records: Sequence[Recorded], begin_ns: int, end_ns: int) -> Window:
    """The events in this time, or in the part of it that every node still has.

    records: in one clock (`merged`). Raises ValueError if too little is left.
    """
    begin_ns = max(begin_ns, *(record.oldest_ns for record in records))
    end_ns = min(end_ns, *(record.monotonic_ns for record in records))
    if end_ns - begin_ns <= TAIL_NS:
        raise ValueError("the nodes' timelines do not reach back to the window: make --window shorter")
    within = [replace(r, events=tuple(e for e in r.events if begin_ns <= e.end_ns)) for r in records]
    return Window(begin_ns, end_ns, records[0].ros_ns - records[0].monotonic_ns, within)


def figures(windows: Sequence[Window], stamps_ns: np.ndarray, commands: str) -> dict[str, Any]:
    """The figures of the windows, and the steps of `vla trace`.

    image_to: from a frame's stamp to each event that it caused, the first of its kind. dropped: frames that
    never became a prefix; without_command: frames that did, but whose chunks moved nothing. stamps_ns: of all
    frames, int64 [N], ROS time. commands: the controller's topic.
    """
    frames = [times for period in windows for times in _frames(period, stamps_ns)]
    observed = [times for times in frames if "prefix" in times]
    seconds = sum(period.seconds for period in windows)
    sent = [period.ended("publish", f"topic {commands}") for period in windows]

    def rate(name: str, track: str) -> float:
        return round(sum(len(period.ended(name, track)) for period in windows) / seconds, 2)

    steps = [*latency.steps(frames), *latency.gpu_steps([r for period in windows for r in period.records])]
    return {
        "seconds": round(seconds, 2),
        "vision": {
            "hz": round(len(observed) / (seconds - len(windows) * TAIL_NS * 1e-9), 2),
            "frames": len(frames),
            "arrived": sum("arrived" in times for times in frames),
            "dropped": len(frames) - len(observed),
        },
        "chunks": {
            "hz": rate("write", latency.CHUNKS),
            "followed_hz": rate(latency.FOLLOWED[1], latency.FOLLOWED[0]),
        },
        "image_to": {name: quantiles(_to(frames, end)) for name, end in REACHED.items()},
        "without_command": sum("commanded" not in times for times in observed),
        "commands": {
            "hz": round(sum(map(len, sent)) / seconds, 2),
            "interval": quantiles(np.concatenate([1e-6 * np.diff(of_one) for of_one in sent])),
        },
        "steps": {step.name: {"frames": len(step.ms), **quantiles(np.array(step.ms))} for step in steps},
    }


def quantiles(times_ms: np.ndarray) -> dict[str, float]:
    """Median, p99 and the greatest; empty of none."""
    if not len(times_ms):
        return {}
    p50, p99, largest = np.quantile(times_ms, (0.5, 0.99, 1.0))
    return {
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "max_ms": round(float(largest), 3),
    }


def _frames(one: Window, stamps_ns: np.ndarray) -> Iterator[dict[str, int]]:
    """The moments of each frame of a window, but for its end, whose commands may come after it."""
    moments = latency.frames(one.records)
    for stamp_ns in map(int, stamps_ns):
        if one.begin_ns <= stamp_ns - one.ahead_ns < one.end_ns - TAIL_NS:
            yield moments.get(stamp_ns, {})


def _to(frames: Sequence[dict[str, int]], end: str) -> np.ndarray:
    return np.array(
        [1e-6 * (times[end] - times["captured"]) for times in frames if {"captured", end} <= times.keys()]
    )
