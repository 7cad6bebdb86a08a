"""Times on the device's own clock, of captured or plain work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from vla_accel_ros.engine.stages.stage import Stage

WARM_UP = 10


class Body(Stage):
    """Any function as a stage, captured at once."""

    def __init__(self, function: Callable[[], object], device: torch.device, capture: bool = True) -> None:
        super().__init__(device)
        self._function = function
        if capture:
            self.capture()

    def body(self) -> None:
        self._function()


def times_ms(run: Callable[[], object], runs: int) -> np.ndarray:
    """float64 [runs]: between device events around each call, after a warm-up."""
    for _ in range(WARM_UP):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return np.array([begin.elapsed_time(end) for begin, end in events])
