"""Measures how long frames and actions take in a split of the GPU: each alone, and both at once without a
break.

The times alone show what a side's multiprocessors are worth. The times beside each other show what a robot
gets, and are the only fair comparison with no split, where both share the GPU and an action waits for blocks
of a frame.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.rules.partition import Measured

WARM_UPS, RUNS = 2, 8
FRAMES = 24
"""Number of frames computed beside actions."""
LATE = 0.99
"""Quantile of the actions' times that is reported."""


def measure(
    split: Split | None,
    frame: Callable[[], object],
    action: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    frames: int = FRAMES,
) -> Measured:
    """Returns the times of a split. frame, action: compute one, and return when it is finished. frame is
    called in this thread, action also in another, at the same time. Errors of either are raised here."""
    alone = [statistics.median(_times(run, clock, RUNS)) for run in (frame, action)]
    acted, failed, ended = [], [], threading.Event()

    def act() -> None:
        try:
            while not ended.is_set():
                acted.extend(_times(action, clock, 1, warm_ups=0))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=act, name="actions beside frames")
    thread.start()
    try:
        frame_times = _times(frame, clock, frames)
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]
    return Measured(split, alone[0], alone[1], statistics.median(frame_times), late(acted or [alone[1]]))


def late(seconds: list[float]) -> float:
    """The LATE quantile of the times."""
    ranked = sorted(seconds)
    return ranked[min(len(ranked) - 1, int(LATE * len(ranked)))]


def _times(
    run: Callable[[], object], clock: Callable[[], float], count: int, warm_ups: int = WARM_UPS
) -> list[float]:
    for _ in range(warm_ups):
        run()
    times = []
    for _ in range(count):
        began_s = clock()
        run()
        times.append(clock() - began_s)
    return times
