"""vla_accel_ros.Robot, against a trajectory node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from chunks import Policy
from stand_ins import motion_of
from std_msgs.msg import Bool

from vla_accel_ros import Robot
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients import robot as module
from vla_accel_ros.nodes.clients.operator import Operator


class Calls:
    """Of a Robot, one in a thread while chunks come."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self._policy = operator, Policy(operator)
        self._policy.goal = np.array([0.9, 0.5, 1.4, -0.5, 0.8, 0.5])

    def __call__(self, call: Callable[[Robot], Any]) -> Any:
        returned: list[Any] = []

        def run() -> None:
            with Robot() as robot:
                try:
                    returned.append(call(robot))
                except Exception as error:
                    returned.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._operator.wait(self._policy.drives(lambda: not thread.is_alive()), 120.0, "end of a call")
        return returned[0]


@pytest.fixture
def calls(operator, arm) -> Calls:
    return Calls(operator)


def test_robot_runs_a_prompt_until_its_time_is_over_and_is_held_resumed_and_released(start, operator, calls):
    start("trajectory", autostart=True)
    operator.wait(lambda: motion_of(operator), 90.0, "motion")
    counts: list[tuple[int, int]] = []

    def run(robot: Robot) -> Any:
        return robot.run("put the cup away", 3.0, lambda *numbers: counts.append(numbers))

    outcome = calls(run)
    assert outcome.reason == "timeout" and counts[-1][0] > 0
    done = operator.node.create_publisher(Bool, "/done", qos.REPORT)
    timer = operator.node.create_timer(0.1, lambda: done.publish(Bool(data=True)))
    outcome = calls(lambda robot: robot.run("put the cup away", success_topic="/done"))
    assert outcome.reason == "completed" and "/done" in outcome.message
    operator.node.destroy_timer(timer)
    assert "stopping" in calls(lambda robot: robot.hold())
    outcome = calls(run)
    assert outcome.reason == "error" and "held by the operator" in outcome.message
    calls(lambda robot: robot.resume())
    calls(lambda robot: robot.release())
    refusal = calls(lambda robot: robot.home())
    assert isinstance(refusal, ValueError) and str(refusal)
    calls(lambda robot: robot.reclaim())


def test_robot_says_that_there_is_none_and_that_it_died(start, operator, calls, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "ANSWER_S", 1.0)
        absent = calls(lambda robot: robot.run("go"))
    assert isinstance(absent, TimeoutError) and "run_policy" in str(absent)
    node = start("trajectory", autostart=True)
    operator.wait(lambda: motion_of(operator), 90.0, "motion")
    died = calls(lambda robot: robot.run("go", 60.0, lambda *_: node.process.poll() is None and node.kill()))
    assert isinstance(died, TimeoutError) and "gone" in str(died)
