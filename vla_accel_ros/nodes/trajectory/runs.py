"""The action run_policy: what control.orders.runs decides, as an action server, and how success is noticed.

The instruction is latched while a goal runs, so that an inference node which starts meanwhile gets it. At its
end it is withdrawn by an empty one, latched too, so that one which starts later does not go on with it. Once
someone else gives an instruction, nothing of ours stays latched. Success is a true Bool on a topic, a Trigger
that succeeds, or an answer of the model that begins with yes, as the goal or the node's parameters name them,
if it comes after the goal began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.duration import Duration
from rclpy.exceptions import InvalidHandle
from rclpy.publisher import Publisher
from rclpy.task import Future
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from vla_accel_msgs.action import RunPolicy
from vla_accel_msgs.msg import LanguageOutput
from vla_accel_ros.control.orders.runs import CANCELLED, ERROR, NODE_DEACTIVATED, Ending, Run, Runs
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.instruction_topic import TOPIC
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode

ACTION = "run_policy"
_FEEDBACK_HZ = 10.0
_ECHOES = 16


class RunServer:
    """The action server of a node, from its configuration to its release."""

    def __init__(self, node: ManagedNode, runs: Runs) -> None:
        self._node, self._runs = node, runs
        self._goals: dict[Run, tuple[Any, Future]] = {}
        self._echoes = deque[str](maxlen=_ECHOES)
        self._instruction: Publisher | None = None
        self._server = ActionServer(
            node,
            RunPolicy,
            ACTION,
            self._execute,
            callback_group=ReentrantCallbackGroup(),
            goal_callback=lambda _: GoalResponse.ACCEPT if node.active else GoalResponse.REJECT,
            cancel_callback=self._on_cancel,
        )
        node.on_release(self._close)
        node.listen_to_instructions(self._on_instruction)
        self._success = Success(node, self)
        node.every(1.0 / _FEEDBACK_HZ, self._publish_feedback)

    @property
    def run(self) -> Run | None:
        """The goal that runs and does not stop yet."""
        run = self._runs.run
        return run if run is not None and run.verdict is None else None

    def complete(self, message: str) -> None:
        """The task is done."""
        if (run := self.run) is not None:
            self._runs.complete(run, message)

    def drain(self) -> None:
        """Publish instructions, and end the goals that have ended."""
        for text in self._runs.words:
            if self._instruction is None:
                self._instruction = self._node.create_publisher(String, TOPIC, qos.LATCHED)
            self._echoes.append(text)
            self._instruction.publish(String(data=text))
        self._runs.words.clear()
        for run in [run for run in self._goals if run.ending is not None]:
            _, future = self._goals.pop(run)
            future.set_result(run.ending)

    async def _execute(self, handle: Any) -> RunPolicy.Result:
        goal, future = handle.request, Future()
        run = self._runs.begin(goal.prompt, goal.timeout_s, self._success.refusal(goal))
        self._goals[run] = handle, future
        if handle.is_cancel_requested:  # before it has begun
            self._runs.cancel(run)
        if run.ending is None:
            self._success.begin(goal)
        self._node.get_logger().info(f"{ACTION}: {run.prompt!r}")
        self.drain()
        ending: Ending = await future
        self._node.get_logger().info(f"{ACTION}: {ending.reason}: {ending.message}")
        with suppress(InvalidHandle):  # the server was closed
            if handle.is_cancel_requested:
                handle.canceled()
            elif ending.reason in (ERROR, CANCELLED, NODE_DEACTIVATED):
                handle.abort()
            else:
                handle.succeed()
        return RunPolicy.Result(termination_reason=ending.reason, message=brief(ending.message))

    def _on_cancel(self, handle: Any) -> CancelResponse:
        for run, (other, _) in self._goals.items():
            if other is handle:
                self._runs.cancel(run)
        return CancelResponse.ACCEPT

    def _on_instruction(self, message: String) -> None:
        if message.data in self._echoes:
            while self._echoes.popleft() != message.data:
                pass
        elif (run := self._runs.run) is None or message.data != run.prompt:
            self._runs.hear(message.data)
            if message.data.strip():
                self._forget()

    def _publish_feedback(self) -> None:
        self._success.ask()
        if (run := self._runs.run) is not None and run in self._goals:
            published, queued = self._runs.published(run), self._runs.queued()
            feedback = RunPolicy.Feedback(published_actions=published, queue_depth=queued)
            handle = self._goals[run][0]
            if handle.status in (GoalStatus.STATUS_EXECUTING, GoalStatus.STATUS_CANCELING):
                handle.publish_feedback(feedback)

    def _forget(self) -> None:
        """Latch no instruction any more."""
        if self._instruction is not None:
            self._node.destroy_publisher(self._instruction)
            self._instruction = None

    def _close(self) -> None:
        if self._instruction is not None:  # the withdrawal must arrive, or the next process goes on with it
            self._instruction.wait_for_all_acked(Duration(seconds=0.5))
        self._forget()
        self._server.destroy()


class Success:
    """What says that the task is done, as the goal or the node's parameters name it."""

    def __init__(self, node: ManagedNode, server: RunServer) -> None:
        self._node, self._server = node, server
        self._period_ns = round(value(node, "success_period_s") * 1e9)
        self._answer: Future | None = None
        self._names: tuple[str, ...] = ()
        self._closing: list[Callable[[], object]] = []
        node.on_release(self._close)
        self.begin(RunPolicy.Goal())

    def refusal(self, goal: RunPolicy.Goal) -> str:
        """Why it cannot be noticed as the goal says; empty if it can. A goal must not begin that nobody can
        end: what this process uses with another type is found by trying."""
        node = self._node
        for field, kind in (("success_topic", Bool), ("success_service", Trigger)):
            if not (name := getattr(goal, field)):
                continue
            try:
                node.resolve_topic_name(name)
            except RuntimeError as error:
                return f"{field} is {name!r}: give the name of a topic or service ({error})"
            try:
                if kind is Bool:
                    node.destroy_subscription(node.create_subscription(Bool, name, self._on_bool, qos.REPORT))
                else:
                    node.destroy_client(node.create_client(Trigger, name))
            except RuntimeError:
                return f"{field} is {name!r}, which is of another type: give a {kind.__name__}"
        return ""

    def begin(self, goal: RunPolicy.Goal) -> None:
        """A goal begins: nothing that was said before counts."""
        self._begun_ns = self._asked_ns = self._node.now_ns()
        if self._answer is not None:
            self._answer.cancel()
        self._answer = None
        fields = ("success_topic", "success_service", "success_question")
        names = tuple(getattr(goal, name) or value(self._node, name) for name in fields)
        if names != self._names:
            self._close()
            self._names = self._topic, self._service, self._question = names
            self._open()

    def _open(self) -> None:
        node = self._node
        if self._topic:
            self._listen(Bool, self._topic, self._on_bool)
        if self._service:
            self._client = node.create_client(Trigger, self._service)
            self._closing.append(partial(node.destroy_client, self._client))
        if self._question:
            self._questions = node.create_publisher(String, "question", qos.REPORT)
            self._closing.append(partial(node.destroy_publisher, self._questions))
            self._listen(LanguageOutput, "language_output", self._on_answer)

    def _listen(self, kind: type, topic: str, callback: Callable[[Any], None]) -> None:
        subscription = self._node.create_subscription(kind, topic, callback, qos.REPORT)
        self._closing.append(partial(self._node.destroy_subscription, subscription))

    def _close(self) -> None:
        while self._closing:
            self._closing.pop()()

    def ask(self) -> None:
        """Ask, if it is time."""
        now_ns = self._node.now_ns()
        if self._server.run is None or now_ns < self._asked_ns + self._period_ns:
            return
        self._asked_ns = now_ns
        if self._question:
            self._questions.publish(String(data=self._question))
        if (
            self._service
            and (self._answer is None or self._answer.done())
            and self._client.service_is_ready()
        ):
            self._answer = self._client.call_async(Trigger.Request())
            self._answer.add_done_callback(self._on_service)

    def _on_bool(self, message: Bool) -> None:
        if message.data:
            self._server.complete(f"{self._topic} is true")

    def _on_service(self, answer: Future) -> None:
        if answer is not self._answer or answer is None or answer.cancelled():
            return
        response: Any = answer.result()
        if response.success:
            self._server.complete(f"{self._service}: {response.message or 'success'}")

    def _on_answer(self, message: LanguageOutput) -> None:
        fresh = convert.stamp_ns(message.header.stamp) > self._begun_ns
        yes = message.text.strip().lower().startswith("yes")
        ours = message.prompt in (self._question, brief(self._question))
        if ours and message.finished and not message.refused and fresh and yes:
            self._server.complete(f"{self._question!r}: the model says {message.text.strip()!r}")
