"""The thread of the force sensors when this program itself is at fault: commands go on, the robot stops, and
the cause is named."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from vla_accel_ros.control.force.reflexes import Reflexes
from vla_accel_ros.nodes.trajectory import force as force_module
from vla_accel_ros.nodes.trajectory.force import ForceLoop

WAIT_S = 20.0


class Source:
    """Fails once, at a time that the test chooses."""

    def __init__(self) -> None:
        self.problem, self.fails, self.read_after = "", threading.Event(), 0

    def read(self) -> list[Any]:
        if self.fails.is_set():
            self.read_after += 1
            raise RuntimeError("this sensor's code is wrong")
        return []

    def close(self) -> None:
        pass


class Stream:
    """A controller that is commanded at a rate."""

    def __init__(self) -> None:
        self.controller, self.more = SimpleNamespace(rate_hz=500.0), threading.Event()

    def tick(self, now_ns: int) -> None:
        self.more.set()


def test_commands_go_on_when_the_sensors_cannot_be_judged_and_the_cause_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, stream, log = Source(), Stream(), list[str]()
    sensor: Any = SimpleNamespace(rate_hz=1000.0)
    guard = SimpleNamespace(
        armed=False,
        watches=[SimpleNamespace(note="")],
        step=lambda now_ns, lead_ns: None,
        force=SimpleNamespace(sensors=[sensor]),
    )
    outputs = SimpleNamespace(streams=[stream], lock=threading.Lock())
    clock = SimpleNamespace(now_ns=time.time_ns, monotonic_ns=time.monotonic_ns, simulated=False)
    robot: Any = SimpleNamespace(outputs=outputs, clock=clock, kept_ns=10**8)
    reflexes = Reflexes(robot, guard)  # type: ignore[arg-type]
    motion: Any = SimpleNamespace(robot=robot, force=SimpleNamespace(reflexes=reflexes, guard=guard))
    node: Any = SimpleNamespace(active=True, get_logger=lambda: SimpleNamespace(error=log.append))
    monkeypatch.setattr(force_module, "open_source", lambda node, sensor: source)
    monkeypatch.setattr(force_module, "value", lambda node, name: 0)
    loop = ForceLoop(node, motion, [sensor])

    def wait_for_ticks(count: int) -> None:
        for _ in range(count):
            stream.more.clear()
            assert stream.more.wait(WAIT_S)

    try:
        wait_for_ticks(3)
        assert not reflexes.failed
        source.fails.set()
        wait_for_ticks(20)
        assert source.read_after == 1, "what failed is not asked again"
        assert "this sensor's code is wrong" in reflexes.failed
        assert "restart the trajectory node" in reflexes.failed
        assert any("Traceback" in text for text in log)
    finally:
        loop.close()
