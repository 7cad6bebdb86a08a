"""Logs what a node has to say again and again only once in a while.

For each call rclpy's throttle_duration_sec looks up the caller and its source file, also for what it does not
log: 0.7 ms, at every tick or message of a node that says so because it is late. This asks a clock first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.node import Node


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
