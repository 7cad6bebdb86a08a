"""Real-time chunking with a policy server: what is sent of the last chunk, and when nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.asking import Asking
from vla_accel_ros.wire.continuing import Continuing

PLAIN = Contract.load(demo_contract())
CONTRACT = replace(PLAIN, keys=replace(PLAIN.keys, continues=True))
STEP_NS = round(CONTRACT.chunk.step_dt_s * 1e9)
ROWS = np.arange(32.0, dtype=np.float32)[:, None] + np.linspace(0.0, 0.5, 6, dtype=np.float32)


class Server:
    """Answers with ROWS plus 100 for each request."""

    def __init__(self) -> None:
        self.requests = list[dict[str, Any]]()

    def infer(self, request: Any, deadline_s: float) -> np.ndarray:
        self.requests.append(request)
        return ROWS + 100.0 * (len(self.requests) - 1)


class Robot:
    """Asks at times of its own. An answer takes 3 steps."""

    def __init__(self, contract: Contract = CONTRACT) -> None:
        self.server, self.now_ns = Server(), 0
        self.asking = Asking(contract, self.server, 0.0, Continuing(4, 0.0))

    def executes(self, as_they_are: bool = True, lead_s: float = 0.0, beginning: int = 1) -> None:
        assert self.asking.continuing is not None
        self.asking.continuing.executed(as_they_are, lead_s, beginning)

    def ask(self, step: int, instruction: str = "go") -> Any:
        images = {camera.image: np.zeros((8, 8, 3), np.uint8) for camera in CONTRACT.cameras}
        observation = Observation(images, np.zeros(6, np.float32), instruction, step * STEP_NS)
        return self.asking.chunk(observation, lambda: (step + 3) * STEP_NS)


@pytest.fixture
def robot() -> Robot:
    return Robot()


def test_the_next_request_has_the_rows_that_are_executed_meanwhile(robot):
    robot.executes(lead_s=0.5 * CONTRACT.chunk.step_dt_s)
    robot.ask(0)
    chunk = robot.ask(5)
    first, second = robot.server.requests
    assert "delay" not in first and second["delay"] == 4  # three steps and a half
    np.testing.assert_allclose(second["action_prefix"], ROWS[5 : 5 + 4 + 4])
    np.testing.assert_allclose(chunk.actions[:5, 0], [5, 6, 7, 8, 104])  # executed as they were sent
    robot.ask(8)
    np.testing.assert_allclose(robot.server.requests[-1]["action_prefix"][:2, 0], [8, 104])


def test_a_server_that_takes_only_the_rows_of_the_delay_gets_no_others():
    robot = Robot(replace(CONTRACT, keys=replace(CONTRACT.keys, agreeing=False)))
    robot.executes()
    robot.ask(0)
    robot.ask(5)
    assert robot.server.requests[-1]["delay"] == 3
    np.testing.assert_allclose(robot.server.requests[-1]["action_prefix"], ROWS[5 : 5 + 3])
    assert not keys_of("picpp-pi06", ()).agreeing and keys_of("native", ()).agreeing


@pytest.mark.parametrize("why", ["instruction", "beginning", "held", "past", "clock"])
def test_nothing_is_continued_when_the_last_chunk_is_not_executed(robot, why):
    robot.executes()
    robot.ask(2)
    if why == "beginning":
        robot.executes(beginning=2)
    if why == "held":
        robot.executes(as_they_are=False)
    robot.ask({"past": 40, "clock": 1}.get(why, 5), "stop" if why == "instruction" else "go")
    assert "delay" not in robot.server.requests[-1]


def test_a_server_that_does_not_continue_is_never_told(robot):
    asking = Asking(PLAIN, robot.server, 0.0, Continuing(4, 0.0))
    assert asking.continuing is None


def test_rows_of_velocities_are_not_continued():
    joints = tuple(replace(joint, action="velocity") for joint in CONTRACT.joints)
    with pytest.raises(ValueError, match="continues"):
        Asking(replace(CONTRACT, joints=joints), Server(), 0.0)
