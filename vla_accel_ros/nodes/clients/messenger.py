"""Delivers an instruction or a question to a running robot for certain, and reports the outcome.

A message that is published as soon as the node exists reaches only subscriptions that are discovered by then.
So this publisher waits until the node `inference` of the robot's namespace is matched, and stays until that
has acknowledged the message. Then `motion` and `inputs` say whether the robot moves, and `language_output`
what it answers. What keeps it from that is told as soon as it has lasted a moment; a node that is starting is
waited for, and that time does not count.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import partial

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.srv import GetState
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.task import Future
from std_msgs.msg import String

from vla_accel_msgs.msg import Inputs, LanguageOutput, Motion
from vla_accel_ros.control.following.joining import BEGINNING, JOINING, WAITING
from vla_accel_ros.control.following.reasons import listed, unnumbered
from vla_accel_ros.control.following.watchdog import BRAKING, SETTLING
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.diagnostics import ERROR
from vla_accel_ros.nodes.running.processes import Process, domain, of_node, processes
from vla_accel_ros.recording.robots import of_robot

SETTLE_S = 1.0
"""Reports that arrive earlier may still be about the instruction before; a cause lasts longer."""
DISCOVERY_S = 3.0
"""Nodes that are not in the graph by then are not running."""
START = (
    "start it: ros2 launch vla_accel_ros bringup.launch.py contract:=FILE model:=PATH, or set ROS_DOMAIN_ID"
)
_LOOK_S = 0.5
_PASSING = (BRAKING, SETTLING, BEGINNING, JOINING, WAITING)
# A chunk that is being made; why it does not come would follow a semicolon.
_WAITS = re.compile(r"^chunk [^;]*; inference waits: ")
_STATES = ("unconfigured", "inactive", "active", "finalized")
_COMING = re.compile(r"chunk (has not come yet|is [^;]*)")


class Messenger(ClientNode):
    """Sends words to a robot, and receives its reports. tell: called with what is waited for."""

    def __init__(self, namespace: str = "", tell: Callable[[str], object] = lambda _: None) -> None:
        super().__init__(namespace)
        self._begun_s = time.monotonic()
        self._tell = tell
        self._nodes = {name: _Node(self._node, name, self._begun_s) for name in ("inference", "trajectory")}
        self._motion: Motion | None = None
        self._inputs: Inputs | None = None
        self._diagnostics: dict[str, DiagnosticStatus] = {}
        listen = self._node.create_subscription
        listen(Motion, "motion", partial(setattr, self, "_motion"), qos.LATCHED)
        listen(Inputs, "inputs", partial(setattr, self, "_inputs"), qos.REPORT)
        listen(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.REPORT)

    def instruct(self, text: str, timeout_s: float) -> None:
        """Give the robot an instruction. Raises TimeoutError, one sentence, unless inference acknowledges
        it."""
        self._deliver("instruction", text, qos.LATCHED, timeout_s)
        self._inputs = None  # earlier reports say nothing about this instruction

    def outcome(self, timeout_s: float) -> tuple[bool, str]:
        """Whether the robot follows chunks, and one sentence about it. Waits for that, or for a cause that
        keeps it from that, at most timeout_s after its nodes have started."""
        begun_s = time.monotonic()

        def runs() -> bool:
            heard = self._inputs is not None and time.monotonic() >= begun_s + SETTLE_S
            return heard and self._motion is not None and not self._reasons()

        if self._until(runs, timeout_s, self._reasons):
            return True, "running: it follows chunks for this instruction"
        return False, f"it does not move: {'; '.join(self._reasons(at_last=True)) or 'run `vla doctor`'}"

    def ask(self, question: str, timeout_s: float, grown: Callable[[str], None]) -> tuple[bool, str]:
        """Ask about what the robot sees; `grown` is called with each new piece of the answer.

        Returns whether it was answered, and the answer or the reason for a refusal. Raises TimeoutError
        unless inference gets the question and finishes the answer in time.
        """
        answers: list[LanguageOutput] = []

        def hear(message: LanguageOutput) -> None:
            ours = message.prompt in (question, brief(question)) and not (answers and answers[-1].finished)
            if ours and (not answers or message.request_id == answers[0].request_id):
                if not message.refused:
                    grown(message.text[len(answers[-1].text) if answers else 0 :])
                answers.append(message)

        self._node.create_subscription(LanguageOutput, "language_output", hear, qos.REPORT)
        self._deliver("question", question, qos.REPORT, timeout_s)

        def answered() -> bool:
            return bool(answers) and answers[-1].finished

        if not self._until(answered, timeout_s, partial(self._why_not, "inference")):
            problem = "the answer is not finished" if answers else "there is no answer"
            reasons = self._why_not("inference", at_last=True) or self._reasons(at_last=True)
            raise TimeoutError(
                f"{problem}: {'; '.join(reasons) or f'not within {timeout_s:g} s: run `vla doctor`'}"
            )
        return not answers[-1].refused, answers[-1].text

    def _deliver(self, topic: str, text: str, profile: QoSProfile, timeout_s: float) -> None:
        publisher = self._node.create_publisher(String, topic, profile)
        name = publisher.topic_name
        heard = partial(self._heard_by_inference, publisher)
        if not self._until(heard, timeout_s, partial(self._why_not, "inference")):
            reason = (
                "; ".join(self._why_not("inference", at_last=True))
                or f"not within {timeout_s:g} s: run `vla doctor`"
            )
            raise TimeoutError(f"no node called inference subscribes to {name}: {reason}")
        publisher.publish(String(data=text))
        acknowledged = partial(publisher.wait_for_all_acked, Duration(seconds=0.05))
        if not self._until(acknowledged, max(timeout_s, SETTLE_S)):
            raise TimeoutError(
                f"{name} was published, but not every subscriber has acknowledged it: run `vla doctor`"
            )

    def _heard_by_inference(self, publisher: Publisher) -> bool:
        """Whether inference is discovered, and all known subscriptions are matched."""
        listeners = self._node.get_subscriptions_info_by_topic(publisher.topic_name)
        names = [(listener.node_namespace, listener.node_name) for listener in listeners]
        is_discovered = (self._node.get_namespace(), "inference") in names
        return is_discovered and publisher.get_subscription_count() >= len(listeners)

    def _until(
        self, condition: Callable[[], bool], timeout_s: float, causes: Callable[[], list[str]] = list
    ) -> bool:
        """Wait until a condition holds; returns whether it does. It gives up after timeout_s, or when the
        causes that keep it from that have been the same for SETTLE_S, but not while a node is starting."""
        end_s = since_s = time.monotonic()
        same: tuple[str, ...] | None = None
        while not condition():
            self._executor.spin_once(timeout_sec=0.05)
            now_s, starts = time.monotonic(), [w for w in (n.starts() for n in self._nodes.values()) if w]
            reasons = (*starts, *map(unnumbered, causes()))
            if starts or same is None:
                end_s = now_s + timeout_s
                self._tell("; ".join(starts))
            if starts or reasons != same:
                same, since_s = reasons, now_s
            if now_s >= end_s or (reasons and now_s >= since_s + SETTLE_S):
                return condition()
        return True

    def _why_not(self, node: str, at_last: bool = False) -> list[str]:
        """Why a node takes no part, if that is certain; at_last: or, at the end of waiting, likely."""
        reason = self._nodes[node].why_not(at_last)
        state = self._nodes[node].state
        lines = [line for name, line in self._diagnostics.items() if name.startswith(f"{node}: ")]
        trouble = next((line.message for line in lines if line.level == ERROR and state != "active"), "")
        if reason and state:
            reason = f"{reason}: {trouble or 'activate it, or read its log'}"
        return [reason] if reason else []

    def _reasons(self, at_last: bool = False) -> list[str]:
        """Why nothing moves, as far as it is reported. at_last: with what may pass by itself."""
        reasons = [] if self._inputs is not None else self._why_not("inference", at_last)
        if self._motion is None:
            reasons += self._why_not("trajectory", at_last)
        elif self._motion.state != Motion.RUNNING:
            reasons += [_WAITS.sub("", reason) for reason in self._motion.reasons]
        elif self._inputs is not None and self._inputs.waiting_for:
            reasons.append(self._inputs.waiting_for)
        if at_last:
            return reasons
        return [r for r in reasons if r not in _PASSING and not _COMING.fullmatch(r)]

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self._diagnostics |= of_robot(self._node.get_namespace(), message.status)


class _Node:
    """A node of the robot, as seen by one of another process: in the graph, by its answers, and as a process
    of this machine. begun_s: when the other one came into the graph."""

    def __init__(self, observer: Node, name: str, begun_s: float) -> None:
        self._observer, self._begun_s = observer, begun_s
        self.name = f"{observer.get_namespace().rstrip('/')}/{name}"
        self._client = observer.create_client(GetState, f"{self.name}/get_state")
        self._asked: Future | None = None
        self._answer = ""
        self._looked_s = float("-inf")
        self._before: dict[int, Process] = {}
        self._processes: list[Process] = []
        self.state = ""
        """Of its lifecycle; empty while it does not answer, and before it has answered the same twice: a node
        may answer once before it configures itself."""

    def starts(self) -> str:
        """A sentence while it is starting, else empty."""
        self._look()
        if self.state in _STATES:
            return ""
        young = [p for p in self._processes if p.is_starting(self._before.get(p.pid))]
        return f"{self.name} is starting (process {young[0].pid})" if young else ""

    def why_not(self, at_last: bool) -> str:
        """Words about a node that does not run, does not answer or is not active; empty if it may be well."""
        if self.state:
            return f"{self.name} is {self.state}" if self.state in _STATES and self.state != "active" else ""
        if self.starts() or (time.monotonic() < self._begun_s + DISCOVERY_S and not at_last):
            return ""
        stopped = next((process.pid for process in self._processes if process.stopped), 0)
        if stopped:
            return f"{self.name} hangs: process {stopped} was stopped by a signal: kill -CONT {stopped}"
        nodes = self._observer.get_node_names_and_namespaces()
        names = [f"{namespace.rstrip('/')}/{name}" for name, namespace in nodes]
        if self.name in names or self._processes:
            hangs = f"{self.name} does not answer: run `vla doctor`"
            return hangs if self._processes or at_last else ""  # on another machine it may be starting
        namesakes = [name for name in names if name.endswith(self.name[self.name.rindex("/") :])]
        hint = f"but {listed(namesakes)} does: give its --namespace" if namesakes else START
        where = f"does not run in ROS domain {domain(os.environ)}"
        return f"{self.name} {where}: {hint}" if not namesakes else f"{self.name} {where}, {hint}"

    def _look(self) -> None:
        """Ask for its state, and look for its process, twice a second."""
        if self._asked is not None and self._asked.done():
            answer, self._asked = self._asked.result().current_state.label, None
            self.state = answer if answer in ("active", self._answer) else ""
            self._answer = answer
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        self._before = {process.pid: process for process in self._processes}
        self._processes = of_node(self.name, processes())
        if self._client.service_is_ready():  # an answer may be lost: it is asked again
            self._asked = self._client.call_async(GetState.Request())
        else:
            self.state = self._answer = ""
