"""The person at the robot, as a class: gives instructions, resets the scene, and records what happens.

The demo and the tests use it to drive the real nodes over the real topics; it knows nothing that a user at a
terminal could not know. It has its own ROS context and spins in its own thread. Instructions are latched, so
a node that starts later gets the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.srv import ResetScene
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.listener import Listener
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.nodes.running.shutdown import leave_graph
from vla_accel_ros.nodes.service_calls import call, introduce, sentence

ANSWER_S = 30.0
"""Longest time to find a service and get its answer: a node that starts on a busy host is slow."""


class Operator(Listener):
    """Talks to the nodes of one robot, and records their messages.

    contract: names the joints and topics. namespace: the robot's. memory: entries kept of each record.
    use_sim_time: its clock is /clock. Use it as a context manager, or call close().
    """

    def __init__(
        self,
        contract: Contract,
        namespace: str = "",
        memory: int = 20_000,
        use_sim_time: bool = False,
    ) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        clock = [Parameter("use_sim_time", value=use_sim_time)]
        node = rclpy.create_node(
            "operator", namespace=namespace, context=self._context, parameter_overrides=clock
        )
        super().__init__(node, contract, memory)
        self._instruction = node.create_publisher(String, "instruction", qos.LATCHED)
        self._question = node.create_publisher(String, "question", qos.REPORT)
        self._clients: dict[str, Any] = {}
        self._executor = DirectExecutor(context=self._context)
        self._executor.add_node(node)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="operator", daemon=True)
        self._thread.start()

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the graph."""
        self._over.set()
        self._executor.shutdown()
        self._thread.join()
        leave_graph(self.node, self._context)

    def instruct(self, text: str) -> None:
        """Give the robot an instruction; nodes that start later get it too."""
        self._instruction.publish(String(data=text))

    def ask(self, question: str) -> None:
        """Ask something about what the robot sees; the answer appears in `answers`, under this prompt."""
        self._question.publish(String(data=question))

    def cancel_answers(self, timeout_s: float = ANSWER_S) -> str:
        """Cancel all answers; returns the node's sentence."""
        return self._trigger("inference/cancel_answers", timeout_s)

    def reset(self, task: str, seed: int, timeout_s: float = ANSWER_S) -> str:
        """Put the simulated scene into the start state of a task; returns its instruction. Raises ValueError
        if the simulator refuses."""
        request = ResetScene.Request(task=task, seed=seed)
        response = self.call(ResetScene, "sim_robot/reset", request, timeout_s, once=True)
        if not response.accepted:
            raise ValueError(response.message)
        return response.instruction

    def hold(self, timeout_s: float = ANSWER_S) -> str:
        """Stop the robot smoothly until resume(); returns the node's sentence. Raises ValueError if
        refused."""
        return self._trigger("trajectory/hold", timeout_s)

    def resume(self, timeout_s: float = ANSWER_S) -> str:
        """End a hold(); returns the node's sentence. Raises ValueError if refused."""
        return self._trigger("trajectory/resume", timeout_s, once=True)

    def call(
        self, kind: type, name: str, request: object, timeout_s: float = ANSWER_S, once: bool = False
    ) -> Any:
        """The answer of a service of the robot's nodes.

        once: the request must not be repeated, nor executed after a later one: a repeated request may be
        executed long after the first was answered.

        Raises TimeoutError if there is no such service, or no answer in time.
        """
        if name not in self._clients:
            self._clients[name] = self.node.create_client(kind, name)
        return call(self.node, self._clients[name], request, timeout_s, self._comes, once)

    def introduce(self, node: str, timeout_s: float = ANSWER_S) -> None:
        """Make a node discover all clients that exist now; its answers to unknown clients can be lost."""
        introduce(self.node, node, timeout_s, self._comes)

    def _comes(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        try:
            return self.wait(condition, timeout_s, "answer")
        except TimeoutError:
            return False

    def _trigger(self, name: str, timeout_s: float, once: bool = False) -> str:
        return sentence(self.call(Trigger, name, Trigger.Request(), timeout_s, once))

    def _spin(self) -> None:
        try:
            while not self._over.is_set():
                self._executor.spin_once()
                self.changed()  # an answer of a service may have come
        except ExternalShutdownException:
            pass
        except Exception as error:
            self.failed(error)
