"""A robot's policy on the same GPU: pi0 at its camera's rate, beside agents.

It is another engine in the same process, because the two models' keys and values have different shapes. Its
lanes are streams with higher priority than those of the agents, as `lanes: two` makes them. Frames never
queue: a frame that comes while the last one is being acted on is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from grids.sizes import small
from shared.timing import summary
from vla_accel_ros.engine.config import ACTIONS_APART
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.config import PI0
from vla_accel_ros.tools.bench.policies import random_observation, random_policy

HZ, VIEWS, PROMPT = 30.0, 2, 20
SIZE = 480, 640


@dataclass
class Acted:
    """latency_ms: of each frame, from its due time to its chunk. dropped: frames that came meanwhile."""

    latency_ms: list[float] = field(default_factory=list)
    dropped: int = 0

    def figures(self) -> dict[str, Any]:
        """Return the median, the p99 and the number of frames; no times if no frame was acted on."""
        times = summary(self.latency_ms)
        return {"frames": len(self.latency_ms), "dropped": self.dropped, **times}


class Robot:
    """tiny: a small model, for a CPU. Makes all stages; no other thread may use the GPU meanwhile."""

    def __init__(self, device: torch.device, dtype: torch.dtype, tiny: bool = False) -> None:
        config = replace(small().staggered_model, kind="pi0", image_names=("left", "right")) if tiny else PI0
        policy = random_policy(config, device, dtype)
        self._frame = random_observation(policy, VIEWS, PROMPT, (30, 40) if tiny else SIZE)
        self._engine = Engine(policy, fast=not tiny, lanes=ACTIONS_APART)
        self._engine.prepare([VIEWS], [PROMPT])
        self._act()

    @contextmanager
    def acting(self) -> Iterator[Acted]:
        """Submit a frame every 1 / HZ seconds while the block runs; errors are raised at its end."""
        acted, stopping, failed = Acted(), threading.Event(), list[BaseException]()

        def loop() -> None:
            try:
                self._loop(acted, stopping)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=loop, name="robot", daemon=True)
        thread.start()
        try:
            yield acted
        finally:
            stopping.set()
            thread.join()
        if failed:
            raise RuntimeError(f"the robot beside the agents failed: {failed[0]!r}") from failed[0]

    def _loop(self, acted: Acted, stopping: threading.Event) -> None:
        begin_s, number = time.monotonic(), 0
        while not stopping.is_set():
            due_s = begin_s + number / HZ
            if stopping.wait(max(0.0, due_s - time.monotonic())):
                return
            self._act()
            now_s = time.monotonic()
            acted.latency_ms.append(1e3 * (now_s - due_s))
            following = max(number + 1, int((now_s - begin_s) * HZ))
            acted.dropped += following - number - 1
            number = following

    def _act(self) -> None:
        with self._engine.observe(self._frame) as prefix:
            self._engine.act(prefix)
