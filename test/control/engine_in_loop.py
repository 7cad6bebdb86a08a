"""An engine whose chunks are real-time chunked, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from builders import JOINTS, make_observation, make_policy

from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = S // 1000
STEP_S = 0.1
POLICIES = {kind: make_policy(kind, delta_mask=np.ones(JOINTS, bool)) for kind in ("pi0", "pi05")}


class Robot:
    """An engine in the loop: an image at a time, its chunk `delay` later, with noise of its own.

    trained_delay: how many committed actions its policy was trained to be given. settings: of RtcSettings.
    """

    def __init__(self, kind: str = "pi05", trained_delay: int = 0, **settings: Any) -> None:
        policy = replace(POLICIES[kind], trained_delay=trained_delay)
        self.engine = Engine(policy, steps=5, step_dt_s=STEP_S)
        self.now_ns = 0
        self.while_computing: Callable[[], None] = lambda: None
        self.rtc = RealTimeChunking(self.engine, self.clock_ns, RtcSettings(**settings))

    def clock_ns(self) -> int:
        self.while_computing()
        return self.now_ns

    def act(self, at_ns: int, delay_ms: int = 150, instruction: str = "reach the red block") -> Chunk:
        """A chunk of the loop, from an image at this time."""
        self.now_ns = at_ns + delay_ms * MS
        with self.engine.observe(make_observation(at_ns % 97, instruction=instruction, stamp_ns=at_ns)) as p:
            return self.rtc.act(p, noise=noise(at_ns))

    def free(self, at_ns: int, instruction: str = "reach the red block") -> np.ndarray:
        """The actions of the same chunk when nothing guides it."""
        with self.engine.observe(make_observation(at_ns % 97, instruction=instruction, stamp_ns=at_ns)) as p:
            return self.engine.act(p, noise=noise(at_ns)).actions


def noise(at_ns: int) -> np.ndarray:
    """float32 [8, 8], of the chunk from an image of this time."""
    return np.random.default_rng(at_ns).standard_normal((8, 8), dtype=np.float32)
