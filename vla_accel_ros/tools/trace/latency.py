"""Shows where the time from image stamp to command goes: the moments of every frame, and the time between
them.

All moments are on the host. A frame lacks later moments if it was overtaken, or if a ring of events did not
reach back far enough. A step counts the frames that have both its ends. A step without frames is shown as not
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.timeline import Event, Recorded

LIVE = (
    ("captured", "arrived", "image on its way"),
    ("arrived", "observed", "image taken; waits for its set and for the lane"),
    ("observed", "prefix", "upload, encode, prefill"),
    ("prefix", "acting", "waits for the action's turn"),
    ("acting", "acted", "denoise, or the action's tokens"),
    ("acted", "published", "finished, not yet published"),
    ("published", "received", "chunk on its way"),
    ("received", "followed", "chunk read"),
    ("followed", "limited", "joined, limited"),
    ("limited", "commanded", "command published"),
)
"""Steps of a running robot: first moment, last moment, what happens between."""

RECORDED = (
    ("captured", "arrived", "image stamp to its record"),
    ("arrived", "prefix", "record of the image to that of its prefix"),
    ("prefix", "published", "record of the prefix to that of its chunk"),
    ("published", "commanded", "record of the chunk to that of the next command"),
)
"""Steps of a bag, which holds only the times at which messages were recorded."""

CHUNKS = "/action_chunk"
OBSERVED = "observe."
ACTING = ("act.", "whole.")
FOLLOWED = ("trajectory", "follow")
"""Track and name of the event in which the trajectory node takes a chunk."""


@dataclass(frozen=True)
class Step:
    """Milliseconds of one step in each frame that has both ends, in order of the frames."""

    name: str
    ms: tuple[float, ...] = ()


def frames(records: Sequence[Recorded]) -> dict[int, dict[str, int]]:
    """Return the moments of each frame in monotonic nanoseconds, by the frame's flow.

    Of several chunks the first counts. A frame without a prefix was overtaken, or is a later camera of a set.
    """
    moments: dict[int, dict[str, int]] = {}
    events = sorted(
        ((process, e) for process, record in enumerate(records) for e in record.events if e.flows),
        key=lambda frame: frame[1].begin_ns,
    )
    following = {process for process, event in events if (event.track, event.name) == FOLLOWED}
    for frame, (captured_ns, arrived_ns) in _arrivals(events).items():
        moments[frame] = {"captured": captured_ns, "arrived": arrived_ns}
    for process, event in events:
        # The first flow is the frame's; an `observe` names its later images, frames of their own, after it.
        for frame in event.flows[:1] if event.name.startswith(OBSERVED) else event.flows:
            _note(moments.setdefault(frame, {}), event, process in following)
    return moments


def _note(at: dict[str, int], event: Event, follows: bool) -> None:
    """Note an event's moment. follows: the event is of the process that follows chunks; others may receive
    them too."""
    track, name = event.track, event.name
    if track.startswith("lane ") and name.startswith(OBSERVED):
        at.setdefault("observed", event.begin_ns)
        at["prefix"] = max(event.end_ns, at.get("prefix", 0))  # the end of its last micro-batch
    elif track.startswith("lane ") and name.startswith(ACTING) and "published" not in at:
        at.setdefault("acting", event.begin_ns)
        at["acted"] = max(event.end_ns, at.get("acted", 0))
    elif name in ("publish", "write") and track.endswith(CHUNKS):  # by message or shared memory
        at.setdefault("published", event.begin_ns)
    elif name in ("callback", "read") and track.endswith(CHUNKS) and follows:
        at.setdefault("received", event.begin_ns)
    elif (track, name) == FOLLOWED:
        at.setdefault("followed", event.begin_ns)
    elif name == "publish" and follows:
        at.setdefault("limited", event.begin_ns)
        at.setdefault("commanded", event.end_ns)


def _arrivals(events: Iterable[tuple[int, Event]]) -> dict[int, tuple[int, int]]:
    """Return when each frame was captured and when its last image arrived, in monotonic nanoseconds.

    The event "taken" carries the image's age, measured in ROS time, so jumps and speed of that clock do not
    matter.
    """
    begun: dict[tuple[int, int], list[Event]] = {}
    arrivals: dict[int, tuple[int, int]] = {}
    for process, event in events:
        frame = event.flows[0]
        if event.name == "callback":
            begun.setdefault((process, frame), []).append(event)
        elif event.name == "taken" and event.track.startswith("camera "):
            around = [
                callback for callback in begun.get((process, frame), ()) if callback.end_ns >= event.begin_ns
            ]
            at_ns = around[-1].begin_ns if around else event.begin_ns
            arrivals[frame] = at_ns - int(event.detail or 0), at_ns
    return arrivals


def steps(moments: Iterable[dict[str, int]], parts: Sequence[tuple[str, str, str]] = LIVE) -> list[Step]:
    """Return the time of each step, and of the whole as the last one."""
    moments = list(moments)
    whole = (parts[0][0], parts[-1][1], "image stamp to command")
    return [Step(name, _between(moments, begin, end)) for begin, end, name in (*parts, whole)]


def _between(moments: Iterable[dict[str, int]], begin: str, end: str) -> tuple[float, ...]:
    return tuple(
        (moment[end] - moment[begin]) * 1e-6 for moment in moments if begin in moment and end in moment
    )


def gpu_steps(records: Sequence[Recorded]) -> list[Step]:
    """Return the GPU times of each kind of micro-batch."""
    times_ms: dict[str, list[float]] = {}
    for event in (e for record in records for e in record.events if e.track.startswith("GPU")):
        times_ms.setdefault(event.name, []).append((event.end_ns - event.begin_ns) * 1e-6)
    return [Step(f"on the GPU: {name}", tuple(ms)) for name, ms in sorted(times_ms.items())]


def table(rows: Sequence[Step]) -> str:
    """Return a table for the terminal, a line for each step."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'where the time goes':<{width}}  frames  median ms   p99 ms"]
    for row in rows:
        if row.ms:
            p50, p99 = np.percentile(row.ms, (50, 99))
            lines.append(f"{row.name:<{width}}  {len(row.ms):6d}  {p50:9.3f}  {p99:7.3f}")
        else:
            lines.append(f"{row.name:<{width}}       0  not known: no frame has both ends of it")
    return "\n".join(lines)
