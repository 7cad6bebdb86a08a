"""Gets the parameters of the robot's controllers that checks/controller_check judges.

On activation the controllers that are there are asked, and one that would move the robot wrongly refuses the
activation. A controller may start later: the others are polled without waiting until they answer, and a wrong
one then holds the robot. Parameters are listed before they are read, because a C++ node that lacks one of the
requested names returns none. A controller's plugin is a parameter of the controller manager.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.client import Client
from rclpy.node import Node
from rclpy.parameter import parameter_value_to_python
from rclpy.task import Future

from vla_accel_ros.contract.checks.controller_check import Sender, asked, judge, node_of
from vla_accel_ros.contract.checks.findings import ERROR, Finding, refuse
from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.nodes.service_calls import AGAIN_S, ServiceCalls


class ControllerCheck:
    """Asks each controller until it answers.

    sender: how trajectories are sent. manager: name of the controller manager's node. on_error: called with
    the sentence if a controller that answers late is wrong. found: topic -> findings, empty if all is well;
    no entry before an answer.
    """

    def __init__(
        self,
        node: Node,
        controllers: tuple[Controller, ...],
        sender: Sender | None = None,
        manager: str = "controller_manager",
        on_error: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.found: dict[str, list[Finding]] = {}
        self._node, self._controllers, self._manager = node, controllers, manager
        self._sender = sender or Sender()
        self._on_error = on_error
        self._asking: dict[tuple[str, str], _Conversation] = {}
        self._values: dict[str, dict[str, object]] = {}
        self._told: set[tuple[str, str]] = set()

    @property
    def findings(self) -> dict[str, list[str]]:
        """Topic -> sentences."""
        return {topic: [f"{f.fact}; {f.fix}" for f in findings] for topic, findings in self.found.items()}

    def refuse_wrong(self) -> None:
        """Ask the controllers that are there; raises ValueError, in one sentence, for errors, and logs
        warnings."""
        self.close()
        self.found, self._values, self._told = {}, {}, set()
        with ServiceCalls(self._node) as ask:
            for controller in self._controllers:
                for node, names in self._questions(controller).items():
                    if _listens(self._node, node):
                        self._answered(controller, node, values_of(ask, node, names))
        refuse([finding for findings in self.found.values() for finding in findings])
        for topic, sentences in self.findings.items():
            for warning in sentences:
                self._node.get_logger().warning(f"{topic}: {warning}")

    def poll(self) -> None:
        """Ask the controllers that are there and have not answered yet."""
        for controller in self._controllers:
            for node, names in self._questions(controller).items():
                key = (controller.topic, node)
                if key in self._asking:
                    self._asking[key].poll()
                elif key not in self._told and _listens(self._node, node):
                    self._asking[key] = _Conversation(
                        self._node, node, names, partial(self._answered_late, controller, node)
                    )

    def close(self) -> None:
        """Stop asking."""
        for conversation in self._asking.values():
            conversation.close()
        self._asking.clear()

    def _questions(self, controller: Controller) -> dict[str, tuple[str, ...]]:
        name = node_of(controller)
        questions = {name: asked(controller)} if name and asked(controller) else {}
        if controller.kind in ("joint_trajectory", "forward_command"):
            questions[self._manager] = (f"{name}.type",)
        return questions

    def _answered(self, controller: Controller, node: str, values: dict[str, object] | None) -> None:
        if values is None:
            return
        known_values = self._values.setdefault(controller.topic, {})
        if node == self._manager:
            known_values["type"] = next(iter(values.values()), "")
        else:
            known_values.update(values)
        self._told.add((controller.topic, node))
        if (controller.topic, node_of(controller)) in self._told:
            self.found[controller.topic] = judge(controller, known_values, self._sender)

    def _answered_late(self, controller: Controller, node: str, values: dict[str, object] | None) -> None:
        self._asking.pop((controller.topic, node)).close()
        previous = self.found.get(controller.topic, [])
        self._answered(controller, node, values)
        for finding in self.found.get(controller.topic, []):
            if finding not in previous and finding.level == ERROR:
                self._on_error(str(finding))
            elif finding not in previous:
                self._node.get_logger().warning(str(finding))


class _Conversation:
    """Lists a node's parameters, gets the wanted ones, and passes them to `tell`; never waits."""

    def __init__(
        self,
        node: Node,
        asked_node: str,
        names: tuple[str, ...],
        tell: Callable[[dict[str, object] | None], None],
    ) -> None:
        self._node, self._names, self._tell = node, names, tell
        self._list = node.create_client(ListParameters, f"{asked_node}/list_parameters")
        self._get = node.create_client(GetParameters, f"{asked_node}/get_parameters")
        self._closed, self._listed = False, not self._list.service_is_ready()
        self._pending: tuple[Client, Future] | None = None
        self._ask()

    def poll(self) -> None:
        """Repeat a request that has no answer after a while, since it may be lost (see service_calls)."""
        if time.monotonic() >= self._asked_s + AGAIN_S:
            self._ask()

    def close(self) -> None:
        """Destroy its clients."""
        if not self._closed:
            self._closed = True
            self._node.destroy_client(self._list)
            self._node.destroy_client(self._get)

    def _ask(self) -> None:
        self._asked_s = time.monotonic()
        if self._pending is not None:
            client, future = self._pending
            client.remove_pending_request(future)
        if self._listed:
            client, request = self._get, GetParameters.Request(names=list(self._names))
        else:
            client, request = self._list, ListParameters.Request()
        future = client.call_async(request)
        self._pending = client, future
        future.add_done_callback(self._got if self._listed else self._on_list)

    def _on_list(self, future: Future) -> None:
        if not self._closed and not self._listed:
            listed = set(future.result().result.names)
            self._names, self._listed = tuple(name for name in self._names if name in listed), True
            self._ask()

    def _got(self, future: Future) -> None:
        if not self._closed:
            self._tell(_plain(self._names, future.result()))


def values_of(ask: ServiceCalls, node: str, names: tuple[str, ...]) -> dict[str, object] | None:
    """Values of a node's parameters, without those that it does not have; None if it does not answer."""
    listed = ask(ListParameters, f"{node}/list_parameters", ListParameters.Request(), timeout_s=0.2)
    if listed is not None:
        names = tuple(name for name in names if name in listed.result.names)
    got = ask(GetParameters, f"{node}/get_parameters", GetParameters.Request(names=list(names)))
    return None if got is None else _plain(names, got)


def _plain(names: tuple[str, ...], answer: GetParameters.Response) -> dict[str, object] | None:
    if len(answer.values) != len(names):
        return None
    values = zip(names, map(parameter_value_to_python, answer.values))
    return {name: value for name, value in values if value is not None}


def _listens(node: Node, asked_node: str) -> bool:
    """Whether the graph shows such a node."""
    services = dict(node.get_service_names_and_types())
    return node.resolve_service_name(f"{asked_node}/get_parameters") in services
