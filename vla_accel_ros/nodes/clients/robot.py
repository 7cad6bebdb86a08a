"""A robot as a program commands it, in the style of Nav2's simple commander.

    with Robot("left_arm") as robot:
        outcome = robot.run("put the cup away", timeout_s=60.0)

It calls the action run_policy and the services of the robot's trajectory node, and spins while it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from rclpy.action import ActionClient
from rclpy.task import Future
from std_srvs.srv import Trigger

from vla_accel_msgs.action import RunPolicy
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.service_calls import sentence

ACTION = "run_policy"
ANSWER_S = 10.0
"""Longest time to find the robot, and for each of its answers."""
ORDER_S = 120.0
"""Longest time of ~/home and ~/release, which end when the robot is at rest."""
_GONE_S = 2.0


class Outcome(NamedTuple):
    """How a run ended: a TERMINATION of RunPolicy such as `completed` or `timeout`, and why, one sentence."""

    reason: str
    message: str


class Robot(ClientNode):
    """The robot of a namespace. Use it as a context manager."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace)
        self._runs = ActionClient(self._node, RunPolicy, ACTION)

    def __exit__(self, *error: object) -> None:
        self._runs.destroy()
        super().__exit__(*error)

    def run(
        self,
        prompt: str,
        timeout_s: float = 0.0,
        feedback: Callable[[int, int], object] = lambda published, queued: None,
        *,
        success_topic: str = "",
        success_service: str = "",
        success_question: str = "",
    ) -> Outcome:
        """Let the policy act on an instruction; returns when that has ended and the robot is at rest.

        timeout_s: after which it ends. success_topic, success_service, success_question: what says that it is
        done. Of those that are 0 or empty the node's parameters count. feedback: called with the numbers of
        published trajectories and queued actions. Ctrl-C cancels the run. Raises TimeoutError if there is no
        such robot, or it dies meanwhile.
        """
        self._await(self._runs.server_is_ready, ANSWER_S, "there is no")
        goal = RunPolicy.Goal(
            prompt=prompt,
            timeout_s=float(timeout_s),
            success_topic=success_topic,
            success_service=success_service,
            success_question=success_question,
        )
        sent = self._runs.send_goal_async(
            goal, lambda m: feedback(m.feedback.published_actions, m.feedback.queue_depth)
        )
        self._await(sent.done, ANSWER_S, "no answer from the")
        handle = sent.result()
        if not handle.accepted:
            return Outcome(
                RunPolicy.Result.TERMINATION_ERROR, "the trajectory node is not active: activate it"
            )
        result: Future = handle.get_result_async()
        try:
            self._ends(result, float("inf"))
        except KeyboardInterrupt:
            handle.cancel_goal_async()
            self._ends(result, ANSWER_S)
            raise
        self._await(result.done, 0.0, "no result from the")
        ended = result.result().result
        return Outcome(ended.termination_reason, ended.message)

    def hold(self) -> str:
        """Stop smoothly until resume(); returns the node's sentence. Raises ValueError if refused, as the
        other services do, and TimeoutError without an answer."""
        return self._order("hold")

    def resume(self) -> str:
        """End a hold, or a fault that was looked at."""
        return self._order("resume")

    def home(self) -> str:
        """Go to the contract's home, and stay until resume()."""
        return self._order("home")

    def release(self) -> str:
        """Come to rest, and leave the controllers to others, such as MoveIt."""
        return self._order("release")

    def reclaim(self) -> str:
        """Take the controllers back."""
        return self._order("reclaim")

    def _order(self, name: str) -> str:
        service, request = f"trajectory/{name}", Trigger.Request()
        return sentence(self._call(Trigger, service, request, ORDER_S, once=True, find_s=ANSWER_S))

    def _ends(self, result: Future, timeout_s: float) -> bool:
        """Whether a run has its result in time. Raises TimeoutError if its server is gone."""
        end_s = time.monotonic() + timeout_s
        ready_s = time.monotonic()
        while not self._wait(result.done, min(0.5, max(0.0, end_s - time.monotonic()))):
            now_s = time.monotonic()
            ready_s = now_s if self._runs.server_is_ready() else ready_s
            if now_s > ready_s + _GONE_S:
                raise TimeoutError("the trajectory node is gone: it was running a goal; run `vla doctor`")
            if now_s >= end_s:
                return False
        return True

    def _await(self, condition: Callable[[], bool], timeout_s: float, problem: str) -> None:
        """Raises TimeoutError unless the condition holds in time."""
        if not self._wait(condition, timeout_s) and not condition():
            name = self._node.resolve_service_name(ACTION)
            raise TimeoutError(
                f"{problem} action {name} within {ANSWER_S:g} s: start the robot, or run `vla doctor`"
            )
