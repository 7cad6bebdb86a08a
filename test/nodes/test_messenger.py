"""What `vla say` concludes from a node's answers: one that is starting is waited for."""

from __future__ import annotations

import os

import pytest
from lifecycle_msgs.srv import GetState
from rclpy.task import Future

from vla_accel_ros.nodes.clients import messenger
from vla_accel_ros.nodes.running.processes import Process, domain


class Observer:
    """Stands for the observing node and its client of get_state; answers: of the requests to come."""

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers

    def get_namespace(self) -> str:
        return "/"

    def create_client(self, kind: type, name: str) -> Observer:
        assert (kind, name) == (GetState, "/inference/get_state")
        return self

    def service_is_ready(self) -> bool:
        return True

    def call_async(self, request: GetState.Request) -> Future:
        future, answer = Future(), GetState.Response()
        if self._answers:
            answer.current_state.label = self._answers.pop(0)
            future.set_result(answer)
        return future


@pytest.mark.parametrize(
    ("answers", "starts", "reason"),
    [
        ([], True, ""),
        (["unconfigured"], True, ""),  # and then it configures itself, and answers nothing
        (["unconfigured", "unconfigured"], False, "/inference is unconfigured"),
        (["unconfigured", "inactive"], True, ""),
        (["active"], False, ""),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_young_node_is_starting_until_it_is_active_or_has_answered_the_same_twice(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], starts: bool, reason: str
) -> None:
    young = Process(7, "inference", {"ROS_DOMAIN_ID": domain(os.environ)}, age_s=1.0)
    monkeypatch.setattr(messenger, "processes", lambda: [young])
    node = messenger._Node(Observer(answers), "inference", 0.0)
    for _ in range(3):
        node._looked_s = float("-inf")  # half a second later
        node.starts()
    assert (node.starts() != "", node.why_not(at_last=False)) == (starts, reason)
