"""Evaluates the logs of all processes for the frames of a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

TAIL_NS = 250_000_000
"""Frames at the end of a window whose commands may come after it are left out."""


def figures(logs: Mapping[str, Mapping[str, Any]], begin_ns: int, end_ns: int) -> dict[str, Any]:
    """The figures of a window, in times of the clock of all stamps.

    image_to: from a frame's stamp to each event that it caused, the first of its kind. dropped: frames that
    never became a prefix; without_command: frames that did, but whose chunks moved nothing.
    """
    vision, motion = logs["inference"], logs["trajectory"]
    frames = _within(logs["camera"]["stamps_ns"], begin_ns, end_ns - TAIL_NS)
    followed = motion["commands"][motion["commands"][:, 1] > 0][:, ::-1]
    firsts = {
        name: _first(log)
        for name, log in (
            ("arrival", vision["came"]),
            ("observation", vision["taken"]),
            ("prefix", vision["seen"]),
            ("chunk", vision["made"]),
            ("command", followed),
        )
    }
    seconds = (end_ns - begin_ns) * 1e-9
    commands = _within(motion["commands"][:, 0], begin_ns, end_ns)
    seen = [stamp for stamp in frames if stamp in firsts["prefix"]]
    return {
        "vision": {
            "hz": _rate(vision["seen"], begin_ns, end_ns),
            "frames": len(frames),
            "dropped": len(frames) - len(seen),
            "lost_in_rings": sum(vision["lost"].values()),
        },
        "chunks": {
            "hz": _rate(vision["made"], begin_ns, end_ns),
            "followed_hz": _rate(followed[:, ::-1], begin_ns, end_ns, 0),
            "overtaken": motion["overtaken"],
            "buffer": {name: number for name, number in motion["buffer"].items() if number},
            "why_refused": motion["why_refused"],
            "follow": quantiles(1e3 * motion["follow_s"]),
        },
        "image_to": {
            name: quantiles(np.array([1e-6 * (first[stamp] - stamp) for stamp in frames if stamp in first]))
            for name, first in firsts.items()
        },
        "without_command": sum(stamp not in firsts["command"] for stamp in seen),
        "commands": {
            "hz": round(len(commands) / seconds, 2),
            "interval": quantiles(1e-6 * np.diff(commands)),
        },
        "stops": [why for at_ns, why in motion["stops"] if begin_ns <= at_ns < end_ns],
        **{name: vision[name] for name in ("misses", "given_up", "page_lock")},
    }


def quantiles(times_ms: np.ndarray) -> dict[str, float]:
    """Median, p99 and the greatest; empty of none."""
    if not len(times_ms):
        return {}
    p50, p99, most = np.quantile(times_ms, (0.5, 0.99, 1.0))
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3), "max_ms": round(float(most), 3)}


def _within(times_ns: np.ndarray, begin_ns: int, end_ns: int) -> list[int]:
    return [int(time_ns) for time_ns in times_ns if begin_ns <= time_ns < end_ns]


def _first(log: np.ndarray) -> dict[int, int]:
    """Stamp of a frame -> when it first came. log: int64 [N, 2] of these, in time's order."""
    return {int(stamp_ns): int(at_ns) for stamp_ns, at_ns in log[::-1]}


def _rate(log: np.ndarray, begin_ns: int, end_ns: int, column: int = 1) -> float:
    return round(len(_within(log[:, column], begin_ns, end_ns)) / ((end_ns - begin_ns) * 1e-9), 2)
