"""Real-time chunking with a policy server: what the robot executes while the next chunk is computed.

A server that continues chunks (`vla serve`, pi.cpp's pi0.6) is sent `action_prefix`, float32 [n, D], the rows
of the last chunk from the new observation on, and `delay`, how many of them will be past when the answer is
executed, by the longest of the last answers. pi0.6 takes n = delay only, and refuses a delay that its policy
was not trained for. There is nothing to continue for the first chunk, after another instruction, and while
the robot does not execute its chunks as they are (mode rtc).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from vla_accel_ros.types import Chunk, Observation

WINDOW = 10
"""Answers whose longest counts."""


class Continuing:
    """Ask from one thread; `executed` may be called by another. agreeing: rows after the delay that are sent.
    delivery_s: from an answer to the first motion that it can change, beside what the executing side says."""

    def __init__(self, agreeing: int, delivery_s: float) -> None:
        self._agreeing, self._delivery_s = agreeing, delivery_s
        self._ages_s = deque[float](maxlen=WINDOW)
        self._executing: tuple[int, float] | None = None
        self._last: tuple[Chunk, str, int] | None = None

    def executed(self, as_they_are: bool, lead_s: float, beginning: int) -> None:
        """What the side that executes chunks says: see chunking.guidance.Execution."""
        self._executing = (beginning, lead_s) if as_they_are else None

    def request(self, observation: Observation, agreeing: bool = True) -> dict[str, Any]:
        """What a request says of the last chunk, empty for nothing. agreeing: also rows after the delay."""
        executing, last = self._executing, self._last
        if executing is None or last is None or not self._ages_s:
            return {}
        (chunk, instruction, began), (beginning, lead_s) = last, executing
        earlier = observation.stamp_ns < chunk.stamp_ns
        if earlier or instruction != observation.instruction or began != beginning:
            return {}
        delay_s = max(self._ages_s) + self._delivery_s + lead_s
        delay, rows = math.ceil(delay_s / chunk.step_dt_s - 1e-6), chunk.rest(observation.stamp_ns)
        if len(rows) < max(delay, 1):
            return {}
        return {"delay": delay, "action_prefix": rows[: delay + agreeing * self._agreeing].astype(np.float32)}

    def made(self, chunk: Chunk, instruction: str, sent: dict[str, Any], now_ns: int) -> None:
        """A chunk came. sent: what `request` gave for it. The robot executes the rows that were sent."""
        self._ages_s.append(max(0.0, (now_ns - chunk.stamp_ns) * 1e-9))
        delay = sent.get("delay", 0)
        if delay:
            chunk.actions[:delay] = sent["action_prefix"][:delay]
        self._last = None if self._executing is None else (chunk, instruction, self._executing[0])
