"""Every number of /diagnostics as OpenMetrics, for Prometheus and Grafana.

A line "arm/inference: stream front" with the value "rate [Hz]" is vla_stream_rate_hertz, with the labels
robot="/arm", node="inference" and of="front"; its level (0 fine, 1 warning, 2 error, 3 stale) is vla_level. A
line that was not repeated for SILENT_S is left out, as a node that is silent has no numbers.
"""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from vla_accel_ros.tools.fleet.board import LINE, SILENT_S, Line

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0"
_NAMED = ("camera", "force", "loop", "replica", "robot", "stream")
"""First words of lines of which a node has several."""
_UNITS = {
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "Hz": ("hertz", 1.0),
    "1/s": ("hertz", 1.0),
    "MB": ("bytes", 1e6),
    "%": ("ratio", 0.01),
}
_VALUE = re.compile(r"(?P<key>.*?)(?: \[(?P<unit>[^\]]*)\])?")

Labels = tuple[tuple[str, str], ...]


class Status(Line, Protocol):
    """The fields of diagnostic_msgs/DiagnosticStatus with its level."""

    level: bytes


class Metrics:
    """Takes lines from one thread; any other may ask for the text. Times are seconds of one monotonic
    clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[Status, float]] = {}

    def hear(self, lines: Iterable[Status], now_s: float) -> None:
        """Take the lines of one message."""
        with self._lock:
            self._lines |= {line.name: (line, now_s) for line in lines}
            heard = self._lines.items()
            self._lines = {name: entry for name, entry in heard if now_s - entry[1] <= SILENT_S}

    def text(self, now_s: float) -> str:
        """All numbers, in OpenMetrics 1.0."""
        families: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        with self._lock:
            lines = [line for line, at_s in self._lines.values() if now_s - at_s <= SILENT_S]
        for line in lines:
            if (match := LINE.fullmatch(line.name)) is None:
                continue
            kind, name = split(match["item"])
            labels = (("robot", f"/{match['namespace'] or ''}"), ("node", match["node"]), ("of", name))
            families["vla_level"][(*labels, ("item", match["item"]))] = float(ord(line.level))
            for pair in line.values:
                if (number := _number(pair.value)) is not None:
                    metric, factor = named(kind, pair.key)
                    families[metric][labels] = number * factor
        text = []
        for metric, samples in sorted(families.items()):
            text.append(f"# TYPE {metric} gauge")
            text += [f"{metric}{{{_written(labels)}}} {value:.9g}" for labels, value in samples.items()]
        return "\n".join([*text, "# EOF\n"])


def split(item: str) -> tuple[str, str]:
    """The kind and the name of what a line is about; a controller's is named by its topic."""
    if "/" in item and item.partition(" ")[0] not in _NAMED:
        return "controller", item
    word, _, name = item.partition(" ")
    return (word, name) if word in _NAMED else (item, "")


def named(kind: str, key: str) -> tuple[str, float]:
    """The name of a metric, and the factor to its unit."""
    match = _VALUE.fullmatch(key)
    assert match is not None
    unit, factor = _UNITS.get(match["unit"] or "", (match["unit"] or "", 1.0))
    return re.sub(r"[^a-z0-9]+", "_", f"vla {kind} {match['key']} {unit}".lower()).strip("_"), factor


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return number if math.isfinite(number := float(text)) else None
    return None


def _written(labels: Labels) -> str:
    escaped = ((key, re.sub(r'(["\\])', r"\\\1", text).replace("\n", "\\n")) for key, text in labels)
    return ",".join(f'{key}="{text}"' for key, text in escaped)
