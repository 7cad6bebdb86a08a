"""Service calls whose answers are needed before a transition ends.

A callback cannot wait for an answer that its own executor would deliver. Here a second node with its own
executor makes the call, and is destroyed when the answer has arrived or the time is over. Use this only in
transitions and while the robot is at rest: the calling node does nothing else while it waits.

On a busy machine a server may not have discovered a client yet; it then executes the request, but its answer
is lost. So an idempotent request is repeated (`ask_again`), and before any other the client is introduced
(`introduce`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rclpy
from rcl_interfaces.srv import GetParameters
from rclpy.client import Client
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future
from std_srvs.srv import Trigger

FIRST_AGAIN_S, AGAIN_S = 0.05, 0.5
"""Seconds after which an idempotent request is repeated: the first time, and at most."""
LOOK_S = 0.01
"""Seconds between two checks whether a service is there."""

Wait = Callable[[Callable[[], bool], float], bool]
"""Waits until a condition holds, at most the given seconds; returns whether it does."""


def is_there(client: Client, timeout_s: float) -> bool:
    """Whether a service appears in time. rclpy's own wait checks only four times a second."""
    end = time.monotonic() + timeout_s
    while not client.service_is_ready():
        if time.monotonic() >= end or not client.context.ok():
            return False
        time.sleep(LOOK_S)
    return True


def ask_again(ask: Callable[[], Future], timeout_s: float, wait: Wait) -> Any:
    """The answer to an idempotent request, or None if there is none in time."""
    futures: list[Future] = []
    end, again_s = time.monotonic() + timeout_s, FIRST_AGAIN_S
    while True:
        futures.append(ask())
        wait(lambda: any(future.done() for future in futures), min(again_s, end - time.monotonic()))
        again_s = min(2.0 * again_s, AGAIN_S)
        answered = [future.result() for future in futures if future.done()]
        if answered or time.monotonic() >= end:
            return answered[0] if answered else None


def introduce(node: Node, server: str, timeout_s: float, wait: Wait) -> None:
    """Make a server discover all clients that the node's process has now, if it answers at all.

    The entities of a process are discovered in the order of their creation: a server that answers a later
    client knows the earlier ones. server: a node's name; nothing is done if it has no parameter services.
    """
    service = node.resolve_service_name(f"{server}/get_parameters")
    if service in dict(node.get_service_names_and_types()):
        client = node.create_client(GetParameters, service)
        ask_again(partial(client.call_async, GetParameters.Request()), timeout_s, wait)
        node.destroy_client(client)


def answer(
    node: Node, client: Client, request: object, timeout_s: float, wait: Wait, once: bool
) -> Any | None:
    """The answer to a request of a node's client, or None. once: the request must not be repeated."""
    ask = partial(client.call_async, request)
    if not once:
        return ask_again(ask, timeout_s, wait)
    introduce(node, client.srv_name.rpartition("/")[0], timeout_s, wait)
    future = ask()
    return future.result() if wait(future.done, timeout_s) else None


def call(
    node: Node,
    client: Client,
    request: object,
    timeout_s: float,
    wait: Wait,
    once: bool,
    find_s: float | None = None,
) -> Any:
    """As `answer`, for a person. find_s: how long to look for the service; None: timeout_s. Raises
    TimeoutError, one sentence, if there is no such service, or no answer in time."""
    find_s = timeout_s if find_s is None else find_s
    if not is_there(client, find_s):
        raise TimeoutError(
            f"no service {client.srv_name} within {find_s:g} s: start its node, or run `vla doctor`"
        )
    response = answer(node, client, request, timeout_s, wait, once)
    if response is None:
        raise TimeoutError(f"no answer from {client.srv_name} within {timeout_s:g} s: run `vla doctor`")
    return response


def sentence(response: Trigger.Response) -> str:
    """What a node says to an order. Raises ValueError with that if the node refuses."""
    if not response.success:
        raise ValueError(response.message)
    return str(response.message)


def spinning(executor: Executor) -> Wait:
    """Waits by spinning an executor that nothing else spins."""

    def wait(condition: Callable[[], bool], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not condition() and (remaining_s := end - time.monotonic()) > 0.0:
            executor.spin_once(timeout_sec=remaining_s)
        return condition()

    return wait


class ServiceCalls:
    """Calls services on behalf of a node, with its namespace and remappings. Use as a context manager."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asker = rclpy.create_node(
            f"{node.get_name()}_asking",
            namespace=node.get_namespace(),
            context=node.context,
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(self._asker)
        self._wait = spinning(self._executor)

    def __enter__(self) -> ServiceCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._asker.destroy_node()

    def is_there(self, kind: type, name: str, timeout_s: float = 1.0) -> bool:
        """Whether a service appears in time."""
        client = self._asker.create_client(kind, self._node.resolve_service_name(name))
        try:
            return is_there(client, timeout_s)
        finally:
            self._asker.destroy_client(client)

    def __call__(
        self, kind: type, name: str, request: object, timeout_s: float = 1.0, once: bool = False
    ) -> Any:
        """The answer of a service, or None if there is no such service or no answer in time.

        once: the request must not be repeated.
        """
        client = self._asker.create_client(kind, self._node.resolve_service_name(name))
        try:
            if not is_there(client, timeout_s):
                return None
            return answer(self._asker, client, request, timeout_s, self._wait, once)
        finally:
            self._asker.destroy_client(client)
