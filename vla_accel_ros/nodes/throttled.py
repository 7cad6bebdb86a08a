"""Logs what a node has to say again and again only once in a while.

For each call rclpy's throttle_duration_sec looks up the caller and its source file, also for what it does not
log: 0.7 ms, at every tick or message of a node that says so because it is late. This asks a clock first. A
sentence in which only a number differs is the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rclpy.node import Node

GRACE_S = 1.5
"""A reason that passes sooner is not logged; others in the graph are discovered meanwhile."""
AGAIN_S = 10.0


class Throttled:
    """The log of a node for one kind of sentence: of those within period_s, only the first. clock: monotonic
    seconds."""

    def __init__(self, node: Node, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._period_s, self._clock = node, period_s, clock
        self._due_s = float("-inf")

    def warning(self, sentence: str) -> None:
        if self._due():
            self._node.get_logger().warning(sentence)

    def error(self, sentence: str) -> None:
        if self._due():
            self._node.get_logger().error(sentence)

    def _due(self) -> bool:
        now_s = self._clock()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._period_s
        return True


class Reasons:
    """The log of a node for why something does not work, as long as it does not.

    Each reason is logged once when it has lasted GRACE_S, and again if it has come back, at most every
    AGAIN_S. clock: monotonic seconds.
    """

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._clock = node, clock
        self._since_s: dict[str, float] = {}
        self._logged_s: dict[str, float] = {}

    def log(self, what: str, reasons: Mapping[str, str], at_once: bool = False) -> None:
        """Log those that are due, a line each, after these words. reasons: all of the present, what each is
        about -> its sentence. at_once: without grace."""
        now_s, due = self._clock(), []
        self._since_s = {about: self._since_s.get(about, now_s) for about in reasons}
        for about, since_s in self._since_s.items():
            logged_s = self._logged_s.get(about, float("-inf"))
            lasts = at_once or now_s >= since_s + GRACE_S
            if lasts and logged_s < since_s and now_s >= logged_s + AGAIN_S:
                self._logged_s[about] = now_s
                due.append(reasons[about])
        recent = {about: at_s for about, at_s in self._logged_s.items() if now_s < at_s + AGAIN_S}
        self._logged_s = {about: at_s for about, at_s in self._logged_s.items() if about in reasons} | recent
        for reason in due:
            self._node.get_logger().warning(f"{what}: {reason}")
