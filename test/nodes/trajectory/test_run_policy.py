"""The action run_policy of the trajectory node, called by a client of rclpy's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from action_msgs.msg import GoalStatus
from calling import change
from chunks import Policy
from lifecycle_msgs.msg import Transition
from rclpy.action import ActionClient
from stand_ins import ARM, Arm, motion_of
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from vla_accel_msgs.action import RunPolicy
from vla_accel_msgs.msg import LanguageOutput
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert

QUESTION = "is the cup away?"


class Client:
    """Of run_policy, and what inference hears. heard: the instructions."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self._client = operator, ActionClient(operator.node, RunPolicy, "run_policy")
        self.heard: list[str] = []
        node = operator.node
        node.create_subscription(String, "instruction", lambda m: self.heard.append(m.data), qos.LATCHED)
        self.feedback: list[RunPolicy.Feedback] = []
        self.policy = Policy(operator)
        self.policy.goal = np.array([0.9, 0.5, 1.4, -0.5, 0.8, 0.5])

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """With chunks that come meanwhile."""
        self._operator.wait(self.policy.drives(condition), 90.0, what)

    def send(self, prompt: str, **fields: str) -> Any:
        """The handle of a goal, with further fields."""
        self.wait(self._client.server_is_ready, "server of run_policy")
        self._operator.introduce("trajectory")
        sent = self._client.send_goal_async(
            RunPolicy.Goal(prompt=prompt, **fields), lambda message: self.feedback.append(message.feedback)
        )
        sent.add_done_callback(self._operator.changed)
        self.wait(sent.done, "answer to a goal")
        assert sent.result().accepted
        return sent.result()

    def ends(self, handle: Any) -> tuple[int, str, str]:
        """Status, reason and message of its result."""
        result = handle.get_result_async()
        result.add_done_callback(self._operator.changed)
        self.wait(result.done, "result")
        answer = result.result()
        return answer.status, answer.result.termination_reason, answer.result.message

    def close(self) -> None:
        self._client.destroy()


@pytest.fixture
def node(start, operator, arm):
    return start(
        "trajectory",
        autostart=True,
        run_stall_s=3.0,
        success_topic="/done",
        success_service="/is_done",
        success_question=QUESTION,
        success_period_s=0.1,
    )


@pytest.fixture
def client(operator, node) -> Iterator[Client]:
    client = Client(operator)
    yield client
    client.close()


def begins(
    operator: Operator, client: Client, arm: Arm, prompt: str = "put the cup away", **fields: str
) -> Any:
    """A goal, and the arm in motion for it."""
    begin, handle = arm.array(ARM), client.send(prompt, **fields)
    client.wait(lambda: np.abs(arm.array(ARM) - begin).max() > 0.1, "motion")
    client.wait(lambda: client.heard and client.heard[-1] == prompt, "instruction")
    return handle


def test_goal_moves_the_arm_and_its_cancel_stops_it_and_withdraws_the_instruction(operator, arm, client):
    handle = begins(operator, client, arm)
    client.wait(lambda: any(f.published_actions and f.queue_depth for f in client.feedback), "feedback")
    cancelled = handle.cancel_goal_async()
    status, reason, _ = client.ends(handle)
    assert (status, reason) == (GoalStatus.STATUS_CANCELED, RunPolicy.Result.TERMINATION_CANCELLED)
    assert cancelled.result().goals_canceling
    client.wait(lambda: client.heard == ["put the cup away", ""], "withdrawn instruction")
    client.wait(lambda: "run_policy" in motion_of(operator), "reason why it stands")
    count = len(operator.sent)
    client.wait(lambda: client.policy._request > count + 5, "further chunks")
    assert operator.motions[-1].state == operator.motions[-1].HOLDING
    operator.instruct("wave")
    client.wait(lambda: operator.motions[-1].state == operator.motions[-1].RUNNING, "motion")


def say_done(operator: Operator, client: Client, topic: str = "/done") -> object:
    publisher = operator.node.create_publisher(Bool, topic, qos.REPORT)
    return operator.node.create_timer(0.1, lambda: publisher.publish(Bool(data=True)))


def serve_done(operator: Operator, client: Client, service: str = "/is_done") -> object:
    def answer(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success, response.message = True, "the cup is away"
        return response

    return operator.node.create_service(Trigger, service, answer)


def answer_yes(operator: Operator, client: Client, question: str = QUESTION) -> object:
    publisher = operator.node.create_publisher(LanguageOutput, "language_output", qos.REPORT)

    def answer(message: String) -> None:
        yes = message.data == question
        text = LanguageOutput(prompt=message.data, text=" Yes, it is." if yes else "No.", finished=True)
        convert.set_stamp(text.header.stamp, operator.now_ns())
        publisher.publish(text)

    return operator.node.create_subscription(String, "question", answer, qos.REPORT)


@pytest.mark.parametrize(
    ("done", "words"), [(say_done, "/done"), (serve_done, "the cup is away"), (answer_yes, QUESTION)]
)
def test_goal_is_completed_by_a_topic_a_service_and_the_models_answer(operator, arm, client, done, words):
    handle = begins(operator, client, arm)
    keeps = done(operator, client)
    status, reason, message = client.ends(handle)
    assert (status, reason) == (GoalStatus.STATUS_SUCCEEDED, RunPolicy.Result.TERMINATION_COMPLETED)
    assert words in message and keeps is not None


@pytest.mark.parametrize(
    ("field", "done", "name"),
    [
        ("success_topic", say_done, "/cup_is_away"),
        ("success_service", serve_done, "/is_cup_away"),
        ("success_question", answer_yes, "is there no cup?"),
    ],
)
def test_goal_names_what_completes_it_and_the_next_is_completed_as_the_node_says(
    operator, arm, client, field, done, name
):
    done(operator, client)  # always, which this goal does not ask for
    handle = begins(operator, client, arm, **{field: name})
    done(operator, client, name)
    status, reason, message = client.ends(handle)
    assert (status, reason) == (GoalStatus.STATUS_SUCCEEDED, RunPolicy.Result.TERMINATION_COMPLETED)
    assert name in message or done is serve_done
    _, reason, message = client.ends(client.send("again"))
    assert reason == RunPolicy.Result.TERMINATION_COMPLETED and name not in message


def test_goal_whose_topic_is_no_name_or_of_another_type_does_not_disturb_the_one_that_runs(
    operator, arm, client
):
    handle = begins(operator, client, arm)
    for field, name in (
        ("success_topic", "is it done?"),
        ("success_service", "is it done?"),
        ("success_topic", "joint_states"),
        ("success_service", "trajectory/get_parameters"),
    ):
        status, reason, message = client.ends(client.send("again", **{field: name}))
        assert (status, reason) == (GoalStatus.STATUS_ABORTED, RunPolicy.Result.TERMINATION_ERROR)
        assert field in message and name in message
    say_done(operator, client)
    assert client.ends(handle)[1] == RunPolicy.Result.TERMINATION_COMPLETED


def test_newer_goal_takes_the_place_of_the_one_before_and_an_instruction_of_both(operator, arm, client):
    first = begins(operator, client, arm)
    second = client.send("and the plate")
    status, reason, message = client.ends(first)
    assert (status, reason) == (GoalStatus.STATUS_ABORTED, RunPolicy.Result.TERMINATION_CANCELLED)
    assert "and the plate" in message
    operator.instruct("wave")
    status, reason, message = client.ends(second)
    assert (status, reason) == (GoalStatus.STATUS_SUCCEEDED, RunPolicy.Result.TERMINATION_STOPPED)
    assert "wave" in message
    assert client.heard == ["put the cup away", "and the plate", "wave"]


def test_hold_ends_a_goal_and_refuses_the_next_with_its_reason(operator, arm, client):
    handle = begins(operator, client, arm)
    operator.hold()
    for goal in (handle, client.send("again")):
        status, reason, message = client.ends(goal)
        assert (status, reason) == (GoalStatus.STATUS_ABORTED, RunPolicy.Result.TERMINATION_ERROR)
        assert "held by the operator" in message


def test_goal_ends_with_the_reason_when_chunks_end_and_a_later_inference_gets_no_instruction(
    operator, arm, client
):
    handle = begins(operator, client, arm)
    client.policy.tick = lambda *_: None  # it died
    status, reason, message = client.ends(handle)
    assert (status, reason) == (GoalStatus.STATUS_ABORTED, RunPolicy.Result.TERMINATION_ERROR)
    assert "camera" in message or "chunk" in message
    heard: list[str] = []
    operator.node.create_subscription(String, "instruction", lambda m: heard.append(m.data), qos.LATCHED)
    operator.wait(lambda: heard, 90.0, "latched instruction")
    assert heard == [""]


def test_goal_ends_when_the_node_is_deactivated_which_takes_no_goal_then(operator, arm, client):
    handle = begins(operator, client, arm)
    assert change(operator, "trajectory", Transition.TRANSITION_DEACTIVATE)
    status, reason, _ = client.ends(handle)
    assert (status, reason) == (GoalStatus.STATUS_ABORTED, RunPolicy.Result.TERMINATION_NODE_DEACTIVATED)
    sent = client._client.send_goal_async(RunPolicy.Goal(prompt="go"))
    client.wait(sent.done, "answer to a goal")
    assert not sent.result().accepted


def test_node_that_is_ended_in_a_goal_withdraws_its_instruction(operator, arm, client, node):
    begins(operator, client, arm)
    assert node.end() == 0
    operator.wait(lambda: client.heard[-1] == "", 90.0, "withdrawn instruction")
