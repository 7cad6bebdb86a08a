"""Autosteer: the topics, the service and the questions of sensing/subtasks.py.

Subtasks come from `next_subtask`, or are asked of the model as questions are. The one that is followed is on
the latched topic `subtask`, for bags and viewers; empty while there is none.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from std_msgs.msg import String
from std_srvs.srv import SetBool

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.subtasks import MODEL, TOPIC, Subtasks, Words

POLL_S = 0.1


class Steering:
    """The subtasks of an ObservingNode (observing.py, which imports this), from its configuration to its
    release.

    answers: whether its model can be asked. Raises ValueError if the model is asked for subtasks and cannot
    answer.
    """

    def __init__(self, node: Any, answers: bool) -> None:
        source = value(node, "subtasks")
        if source == MODEL and not answers:
            raise ValueError("subtasks is model, but the model cannot answer questions here: set it to topic")
        self._node, self._refused = node, Throttled(node, AGAIN_S)
        self._subtasks = Subtasks(source, value(node, "subtask_period_s"), value(node, "subtask_question"))
        self._answers = deque[tuple[str, str]](maxlen=16)  # from any thread: question and answer
        self._told: Words | None = None
        self._subtask = ""
        self._subtasks.instruct(node.instruction.text, time.monotonic())
        if source == "none":
            return
        self._publisher = node.output(String, "subtask", qos.LATCHED)
        node.serve(SetBool, "~/autosteer", self._on_autosteer)
        if source == TOPIC:
            node.listen(String, "next_subtask", self._on_subtask, qos.REPORT)
        node.every(POLL_S, self._poll)

    def begin(self) -> None:
        """The node was activated."""
        self._subtasks.begin(time.monotonic())

    def instruct(self, task: str) -> None:
        """There is another task; empty: none."""
        self._subtasks.instruct(task, time.monotonic())
        self._told = None

    def hear(self, question: str, answer: str) -> None:
        """The model has answered a question. From any thread."""
        self._answers.append((question, answer))

    def _on_subtask(self, message: String) -> None:
        if self._node.active:
            self._take(message.data)
            self._tell()

    def _on_autosteer(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self._subtasks.steer(request.data, time.monotonic())
        self._tell()
        response.success = True
        response.message = "following subtasks" if request.data else "acting on the task itself"
        return response

    def _poll(self) -> None:
        while self._answers:
            question, answer = self._answers.popleft()
            if self._subtasks.source == MODEL and question == self._subtasks.question:
                self._take(answer)
        if self._subtasks.due(time.monotonic()):
            try:
                self._node.ask(self._subtasks.question)
            except ValueError as refusal:
                self._refused.warning(f"no subtask can be asked for: {refusal}")
        self._tell()

    def _take(self, text: str) -> None:
        """Take a subtask, if the policy can take its words."""
        try:
            self._node.check_words(text)
        except ValueError as refusal:
            self._refused.warning(f"subtask {text[:80]!r} is refused: {refusal}")
        else:
            self._subtasks.answer(text, time.monotonic())

    def _tell(self) -> None:
        """Tell the policy its words, and others the subtask, if they have changed."""
        words = self._subtasks.words(time.monotonic())
        if words == self._told or not self._subtasks.task.strip():
            return
        self._told = words
        self._node.inputs.tell(words.text, words.missing)
        self._node.instructed()
        subtask = words.text if self._subtasks.subtask and self._subtasks.autosteer else ""
        if subtask != self._subtask:
            self._subtask = subtask
            self._publisher.publish(String(data=subtask))
            self._node.get_logger().info(f"subtask: {subtask!r}")
