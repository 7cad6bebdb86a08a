"""The thread of the force sensors when this program itself is at fault: commands go on, the robot stops, and
the cause is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from force_driver import QUANTITIES
from stand_ins import write_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_contract
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


class Adapter:
    """A controller that is commanded at a rate."""

    def __init__(self) -> None:
        self.controller, self.ticks, self.more = SimpleNamespace(rate_hz=500.0), 0, threading.Event()

    def tick(self, now_ns: int) -> None:
        self.ticks += 1
        self.more.set()


class Held:
    """What the loop asks of a node's hold."""

    def __init__(self) -> None:
        self.holds: dict[str, None] = {}
        logger = SimpleNamespace(error=lambda text: self.said.append(text))
        self.said: list[str] = []
        self.node = SimpleNamespace(
            active=True,
            now_ns=lambda: 10**9,
            get_logger=lambda: logger,
            get_clock=lambda: SimpleNamespace(ros_time_is_active=True),
        )

    def fault(self, sentence: str) -> None:
        self.holds[sentence] = None


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    joints = yaml.safe_load(demo_contract().read_text())["joints"]
    wrench = {"slot": "nobody-writes", "rate_hz": 1000, "max_age_s": 1.0, **QUANTITIES}
    kind = {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": 500.0}
    controllers = [{**kind, "joints": [joint["name"] for joint in joints]}]
    more = {"controllers": controllers, "joints": joints, "force": {"wrench": wrench}}
    return Contract.load(write_contract(tmp_path, {}, home=None, **more))


@pytest.fixture
def parts(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    source, adapter, held = Source(), Adapter(), Held()
    guard = SimpleNamespace(
        armed=False,
        watches=[SimpleNamespace(note="")],
        step=lambda now_ns, lead_ns: None,
        forget=lambda: None,
    )
    outputs: Any = SimpleNamespace(
        guard=guard, adapters=[adapter], lock=threading.Lock(), react=lambda reaction: None
    )
    monkeypatch.setattr(force_module, "open_source", lambda node, sensor: source)
    monkeypatch.setattr(force_module, "value", lambda node, name: 0)
    follower = SimpleNamespace(buffer=SimpleNamespace(kept_s=0.1))
    monkeypatch.setattr(ForceLoop, "_follower", follower, raising=False)
    loop = ForceLoop(held, outputs, contract)  # type: ignore[arg-type]
    yield loop, source, adapter, held
    loop.close()


def test_commands_go_on_and_the_robot_stops_until_the_node_is_restarted(
    parts: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, source, adapter, held = parts
    loop._taking_over = SimpleNamespace(watch=lambda now_ns: "")
    ended: list[str] = []
    loop.cancel_move = ended.append

    def ticks(count: int) -> None:
        for _ in range(count):
            adapter.more.clear()
            assert adapter.more.wait(WAIT_S)

    ticks(3)
    loop.watch()
    assert not held.holds
    source.fails.set()
    ticks(20)
    assert source.read_after == 1, "what failed is not asked again"
    loop.watch()
    (sentence,) = held.holds
    assert "this sensor's code is wrong" in sentence and "restart the trajectory node" in sentence
    assert ended == [sentence]
    assert any("Traceback" in text for text in held.said)
    held.holds.clear()  # a person resumes
    loop.watch()
    assert list(held.holds) == [sentence]
