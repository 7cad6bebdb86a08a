"""Questions to other nodes whose answers are needed before a transition ends.

A callback cannot wait for an answer that its own executor would deliver. Here a second node with an executor
of its own asks, and is gone when the answer is there or the time is over. For transitions and for a robot at
rest only: while it waits, the node that asks does nothing else.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node


class Asking:
    """Asks in the name of a node, whose namespace and remappings hold. Use as a context manager."""

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

    def __enter__(self) -> Asking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown()
        self._asker.destroy_node()

    def __call__(self, kind: type, name: str, request: object, timeout_s: float = 1.0) -> Any:
        """The answer of a service, or None when there is no such service or no answer in time."""
        client = self._asker.create_client(kind, self._node.resolve_service_name(name))
        try:
            if not client.wait_for_service(timeout_sec=timeout_s):
                return None
            future = client.call_async(request)
            self._executor.spin_until_future_complete(future, timeout_sec=timeout_s)
            return future.result() if future.done() else None
        finally:
            self._asker.destroy_client(client)
