"""The person at the robot, as a class: gives instructions, resets the scene, and writes down what happens.

The demo and the tests drive the real nodes with it over the real topics; it knows nothing that a user at a
terminal could not know. It has its own ROS context and spins in its own thread. Instructions are latched, so
that a node that starts later hears the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import rclpy
from rcl_interfaces.srv import SetParameters
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.srv import ResetScene
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.listener import Listener
from vla_accel_ros.sensing.contract import Contract


class Operator(Listener):
    """Talks to the nodes of one robot, and listens to them.

    contract: names the joints and topics. namespace: the robot's. memory: entries kept of each record.
    on_image: called with (camera name, message) in the spinning thread for every image; None subscribes
        to none.
    Use as a context manager, or call close().
    """

    def __init__(
        self,
        contract: Contract,
        namespace: str = "",
        memory: int = 20_000,
        on_image: Callable[[str, Image], None] | None = None,
    ) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        node = rclpy.create_node("operator", namespace=namespace, context=self._context)
        super().__init__(node, contract, memory, on_image)
        self._instruction = node.create_publisher(String, "instruction", qos.LATCHED)
        self._question = node.create_publisher(String, "question", qos.REPORT)
        self._clients: dict[str, Any] = {}
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name="operator", daemon=True)
        self._thread.start()

    def __enter__(self) -> Operator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self._thread.join()
        self.node.destroy_node()
        self._context.try_shutdown()

    def instruct(self, text: str) -> None:
        """Tell the robot what to do; nodes that start later hear it too."""
        self._instruction.publish(String(data=text))

    def ask(self, question: str) -> None:
        """Ask something about what the robot sees; `answers` has what it says, under this prompt."""
        self._question.publish(String(data=question))

    def cancel_answers(self, timeout_s: float = 10.0) -> str:
        """Break off all answers; returns the node's sentence."""
        return self._trigger("inference/cancel_answers", timeout_s)

    def reset(self, task: str, seed: int, timeout_s: float = 10.0) -> str:
        """Put the simulated scene into the start state of a task; returns its instruction."""
        response = self._call(
            "sim_robot/reset", ResetScene, ResetScene.Request(task=task, seed=seed), timeout_s
        )
        if not response.accepted:
            raise ValueError(response.message)
        return response.instruction

    def hold(self, timeout_s: float = 10.0) -> str:
        """Stop the robot smoothly until resume(); returns the node's sentence."""
        return self._trigger("trajectory/hold", timeout_s)

    def resume(self, timeout_s: float = 10.0) -> str:
        """End a hold(); returns the node's sentence."""
        return self._trigger("trajectory/resume", timeout_s)

    def stop_cameras(self, *names: str, timeout_s: float = 10.0) -> None:
        """Silence these cameras of the simulated robot, and only these."""
        parameter = Parameter("stopped_cameras", value=",".join(names)).to_parameter_msg()
        request = SetParameters.Request(parameters=[parameter])
        result = self._call("sim_robot/set_parameters", SetParameters, request, timeout_s).results[0]
        if not result.successful:
            raise ValueError(result.reason)

    def _trigger(self, name: str, timeout_s: float) -> str:
        response = self._call(name, Trigger, Trigger.Request(), timeout_s)
        if not response.success:
            raise ValueError(response.message)
        return response.message

    def _call(self, name: str, kind: type, request: object, timeout_s: float) -> Any:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self.node.create_client(kind, name)
        if not client.wait_for_service(timeout_sec=timeout_s):
            raise TimeoutError(f"no service {client.srv_name} within {timeout_s:g} s: is its node running?")
        future = client.call_async(request)
        future.add_done_callback(self.changed)
        self.wait(future.done, timeout_s, f"answer from {client.srv_name}")
        return future.result()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass
        except Exception as error:
            self.failed(error)
