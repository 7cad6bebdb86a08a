"""Answers that are lost, as those of a server to a client that it has not discovered yet."""

from __future__ import annotations

import pytest
from rclpy.service import Service
from stand_ins import ARM, Parameters, lose_answers
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.service_calls import ServiceCalls


class Counting:
    """A service that counts how often it is asked."""

    def __init__(self, operator: Operator, name: str) -> None:
        self.asked = 0
        self.service: Service = operator.node.create_service(Trigger, name, self._answer)

    def _answer(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.asked += 1
        response.success = True
        return response


def test_what_may_be_asked_twice_is_asked_again(operator):
    server = Counting(operator, "robot/hold")
    lose_answers(server.service, 2)
    assert operator.call(Trigger, "robot/hold", Trigger.Request(), timeout_s=30.0).success
    assert server.asked >= 3


def test_what_may_not_is_asked_once_of_a_server_that_knows_the_client(operator):
    server, parameters = Counting(operator, "robot/reset"), Parameters(operator, "robot")
    lose_answers(parameters.services[0])
    assert operator.call(Trigger, "robot/reset", Trigger.Request(), timeout_s=30.0, once=True).success
    with ServiceCalls(operator.node) as ask:
        assert ask(Trigger, "robot/reset", Trigger.Request(), timeout_s=30.0, once=True).success
    assert server.asked == 2


@pytest.mark.parametrize("once", [True, False])
def test_no_answer_at_all_is_told_and_not_waited_for_any_longer(operator, once):
    server = Counting(operator, "robot/reset")
    assert operator.call(Trigger, "robot/reset", Trigger.Request(), timeout_s=30.0, once=True).success
    server.asked = 0
    lose_answers(server.service, 100)
    with pytest.raises(TimeoutError, match=r"robot/reset within 1\.2 s"):
        operator.call(Trigger, "robot/reset", Trigger.Request(), timeout_s=1.2, once=once)
    assert (server.asked == 1) == once
    with pytest.raises(TimeoutError, match=r"robot/start within 0\.1 s"):
        operator.call(Trigger, "robot/start", Trigger.Request(), timeout_s=0.1, once=once)


def test_a_resume_is_not_asked_again_behind_the_back_of_a_later_hold(operator):
    resume, hold = Counting(operator, "trajectory/resume"), Counting(operator, "trajectory/hold")
    lose_answers(resume.service, 100)
    with pytest.raises(TimeoutError, match="no answer from trajectory/resume"):
        operator.resume(timeout_s=2.0)
    operator.hold(timeout_s=30.0)
    assert resume.asked == 1 and hold.asked >= 1


def test_a_controller_whose_first_answers_are_lost_is_judged(operator):
    parameters = Parameters(operator, "arm_positions", joints=ARM, interface_name="effort")
    for service in parameters.services:
        lose_answers(service, 2)
    mismatches: list[str] = []
    controller = Controller("arm_positions/commands", tuple(ARM), "forward_command", rate_hz=100.0)
    check = ControllerCheck(operator.node, (controller,), on_error=mismatches.append)
    timer = operator.node.create_timer(0.1, check.poll)  # in the thread that gets the answers
    operator.wait(lambda: mismatches, 30.0, "judgement")
    timer.cancel()
    assert "interface_name is effort, but we send positions" in mismatches[0]
