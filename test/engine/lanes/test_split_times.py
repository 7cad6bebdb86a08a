"""How long frames and actions take beside each other, which chooses a split."""

from __future__ import annotations

import itertools
import threading

import pytest

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.lanes.partitioned import WARM_UPS, late, measure


def test_times_beside_each_other() -> None:
    acted: list[float] = []
    now = iter(range(10**9))
    found = measure(
        Split(32, 100), lambda: None, lambda: acted.append(0.0), lambda: float(next(now)), frames=4
    )
    assert found.split == Split(32, 100)
    assert found.frame_s >= 1.0 and found.action_s >= 1.0
    assert len(acted) >= WARM_UPS


def test_what_fails_beside_each_other_is_told() -> None:
    calls, failing = itertools.count(), threading.Event()

    def action() -> None:
        if next(calls) == WARM_UPS:
            failing.set()
            raise RuntimeError("an action failed")

    seen = itertools.count()

    def frame() -> None:
        assert next(seen) < WARM_UPS or failing.wait(20.0)

    with pytest.raises(RuntimeError, match="an action failed"):
        measure(None, frame, action, frames=1)
    with pytest.raises(RuntimeError, match="a frame failed"):
        measure(None, _failing, lambda: None)


def _failing() -> None:
    raise RuntimeError("a frame failed")


def test_late_is_what_99_of_100_take_at_most() -> None:
    assert late([float(n) for n in range(1, 201)]) == 199.0
    assert late([3.0]) == 3.0
