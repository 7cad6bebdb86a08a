"""Subtasks of the inference node: from a topic, and from the model itself."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
from builders import make_checkpoint, make_config
from calling import call
from stand_ins import Arm
from std_msgs.msg import String
from std_srvs.srv import SetBool

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.inference.steering import Steering

TASK = "reach the red block"


class Subtasks:
    """What the node says of them, and what it acts on."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self.told = operator, list[str]()
        node = operator.node
        node.create_subscription(String, "subtask", lambda m: self.told.append(m.data), qos.ALL_LATCHED)
        self._publisher = node.create_publisher(String, "next_subtask", qos.REPORT)

    def say(self, text: str) -> None:
        self._publisher.publish(String(data=text))

    @property
    def acted_on(self) -> str:
        line = self._operator.diagnostics.get("inference: inference")
        values = {} if line is None else {pair.key: pair.value for pair in line.values}
        return values.get("instruction", "")

    def wait_acted_on(self, text: str) -> None:
        self._operator.wait(lambda: self.acted_on == text, 90.0, f"action on {text!r}")

    def steer(self, on: bool) -> None:
        assert call(self._operator, SetBool, "inference/autosteer", SetBool.Request(data=on)).success


@pytest.fixture
def subtasks(operator) -> Subtasks:
    return Subtasks(operator)


@pytest.fixture
def node(start, tmp_path, operator, cameras, arm: Arm):
    model = make_checkpoint(tmp_path / "model", make_config())
    return partial(
        start, "inference", autostart=True, model=str(model), device="cpu", steps=1, language_hz=0.0
    )


def test_subtasks_of_a_topic_are_acted_on_until_it_is_silent_and_while_autosteer_is_on(
    operator, subtasks, node
):
    node(subtasks="topic", subtask_period_s=1.0)
    operator.instruct(TASK)
    subtasks.wait_acted_on(TASK)
    operator.wait(
        lambda: subtasks.say("put the red block") or "put the red block" in subtasks.told, 90.0, "it"
    )
    subtasks.wait_acted_on("put the red block")
    operator.wait(
        lambda: "no subtask for 3 s" in operator.diagnostics["inference: inference"].message, 90.0, "why"
    )
    subtasks.steer(False)
    subtasks.wait_acted_on(TASK)
    subtasks.say("follow the green pad")
    subtasks.steer(True)
    operator.wait(
        lambda: subtasks.say("follow the green pad") or subtasks.told[-1] == "follow the green pad",
        90.0,
        "on",
    )
    assert subtasks.told == ["put the red block", "", "follow the green pad"]


def test_model_is_asked_for_subtasks_and_acts_on_its_answers(operator, subtasks, node):
    node(subtasks="model", subtask_period_s=1.0, answer_tokens=4, subtask_question="what next: {task}")
    operator.instruct(TASK)
    operator.wait(lambda: any(a.finished for a in operator.answers), 180.0, "answer")
    answer = next(a for a in operator.answers if a.finished)
    assert answer.prompt == f"what next: {TASK}"
    if text := " ".join(answer.text.split()):
        operator.wait(lambda: text in subtasks.told, 90.0, "its subtask")


def test_subtasks_of_a_model_that_cannot_answer_are_refused_by_name():
    node = SimpleNamespace(get_parameter=lambda name: SimpleNamespace(value="model"))
    with pytest.raises(ValueError, match="subtasks"):
        Steering(node, answers=False)
