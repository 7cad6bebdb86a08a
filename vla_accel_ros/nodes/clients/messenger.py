"""Delivers an instruction or a question to a running robot for certain, and reports the outcome.

A message that is published as soon as the node exists reaches only subscriptions that are discovered by then.
So this publisher waits until the node `inference` of the robot's namespace is matched, and stays until that
has acknowledged the message. Then `motion` and `inputs` say whether the robot moves, and `language_output`
what it answers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import partial

from lifecycle_msgs.srv import GetState
from rclpy.duration import Duration
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from vla_accel_msgs.msg import Inputs, LanguageOutput, Motion
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.service_calls import ask_again

SETTLE_S = 1.0
"""Reports that arrive earlier may still be about the instruction before."""
_NEEDS_A_PERSON = re.compile(r"~/\w+|resume|reclaim|held|not active")


class Messenger(ClientNode):
    """Sends words to a robot, and receives its reports."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace)
        self._motion: Motion | None = None
        self._inputs: Inputs | None = None
        listen = self._node.create_subscription
        listen(Motion, "motion", partial(setattr, self, "_motion"), qos.LATCHED)
        listen(Inputs, "inputs", partial(setattr, self, "_inputs"), qos.REPORT)

    def instruct(self, text: str, timeout_s: float) -> None:
        """Give the robot an instruction. Raises TimeoutError, one sentence, unless inference acknowledges
        it."""
        self._deliver("instruction", text, qos.LATCHED, time.monotonic() + timeout_s)
        self._inputs = None  # earlier reports say nothing about this instruction

    def outcome(self, timeout_s: float) -> tuple[bool, str]:
        """Whether the robot follows chunks, and one sentence about it. Waits for that at most timeout_s, and
        does not wait if a person must act first."""
        begun = time.monotonic()

        def over() -> bool:
            if self._inputs is None or time.monotonic() - begun < SETTLE_S:
                return False
            reasons = " ".join(self._motion.reasons) if self._motion else ""
            hopeless = "refused" in self._waiting_for or _NEEDS_A_PERSON.search(reasons)
            return bool(hopeless) or (self._runs and not self._waiting_for)

        end = begun + timeout_s
        while not over() and time.monotonic() < end:
            self._wait(over, min(0.2, end - time.monotonic()))
        if self._runs and not self._waiting_for:
            return True, "running: it follows chunks for this instruction"
        return False, f"it does not move: {self._why()}"

    def ask(self, question: str, timeout_s: float, grown: Callable[[str], None]) -> tuple[bool, str]:
        """Ask about what the robot sees; `grown` is called with each new piece of the answer.

        Returns whether it was answered, and the answer or the reason for a refusal. Raises TimeoutError
        unless inference gets the question and finishes the answer in time.
        """
        end = time.monotonic() + timeout_s
        answers: list[LanguageOutput] = []

        def hear(message: LanguageOutput) -> None:
            ours = message.prompt in (question, brief(question)) and not (answers and answers[-1].finished)
            if ours and (not answers or message.request_id == answers[0].request_id):
                if not message.refused:
                    grown(message.text[len(answers[-1].text) if answers else 0 :])
                answers.append(message)

        self._node.create_subscription(LanguageOutput, "language_output", hear, qos.REPORT)
        self._deliver("question", question, qos.REPORT, end)

        def answered() -> bool:
            return bool(answers) and answers[-1].finished

        if not self._wait(answered, end - time.monotonic()):
            what = "the answer is not finished" if answers else "there is no answer"
            raise TimeoutError(f"{what} after {timeout_s:g} s: {self._inference(end) or self._why()}")
        return not answers[-1].refused, answers[-1].text

    def _deliver(self, topic: str, text: str, profile: QoSProfile, end: float) -> None:
        publisher = self._node.create_publisher(String, topic, profile)
        name = publisher.topic_name
        if not self._wait_briefly(lambda: self._heard_by_inference(publisher), end):
            raise TimeoutError(f"no node called inference subscribes to {name}: {self._inference(end)}")
        publisher.publish(String(data=text))
        acknowledged = partial(publisher.wait_for_all_acked, Duration(seconds=0.05))
        if not self._wait_briefly(acknowledged, max(end, time.monotonic() + SETTLE_S)):
            raise TimeoutError(f"{name} was published, but not every subscriber has acknowledged it")

    def _heard_by_inference(self, publisher: Publisher) -> bool:
        """Whether inference is discovered, and all known subscriptions are matched."""
        listeners = self._node.get_subscriptions_info_by_topic(publisher.topic_name)
        ours = self._node.get_namespace()
        there = any(one.node_name == "inference" and one.node_namespace == ours for one in listeners)
        return there and publisher.get_subscription_count() >= len(listeners)

    def _wait_briefly(self, condition: Callable[[], bool], end: float) -> bool:
        """Poll a condition that no message announces, until a time."""
        while not (holds := condition()) and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=0.05)
        return holds

    @property
    def _runs(self) -> bool:
        return self._motion is not None and self._motion.state == Motion.RUNNING

    @property
    def _waiting_for(self) -> str:
        return "" if self._inputs is None else self._inputs.waiting_for

    def _why(self) -> str:
        """Why nothing moves, as far as it is reported."""
        reasons = [self._waiting_for] if self._waiting_for else []
        if self._motion is None:
            reasons.append("nothing sends motion: is trajectory running in this namespace and ROS domain?")
        elif not self._runs:
            reasons += [reason for reason in self._motion.reasons if reason not in reasons]
        return "; ".join(reasons) or "no reason is reported: run `vla doctor`"

    def _inference(self, end: float) -> str:
        """What keeps inference from receiving messages; "" if nothing is known."""
        namespace = self._node.get_namespace().rstrip("/")
        name = f"{namespace}/inference"
        if ("inference", self._node.get_namespace()) not in self._node.get_node_names_and_namespaces():
            return f"{name} does not run in ROS domain {os.environ.get('ROS_DOMAIN_ID') or '0'}: start it"
        client = self._node.create_client(GetState, f"{name}/get_state")
        ask = partial(client.call_async, GetState.Request())
        answer = ask_again(ask, max(SETTLE_S, end - time.monotonic()), self._wait)
        state = "does not answer" if answer is None else f"is {answer.current_state.label}"
        return "" if state == "is active" else f"{name} {state}: activate it, or read its log"
