"""A robot that is driven by nodes which may die.

Every wait also watches the processes: it raises NodeDied if one has ended. The caller decides what that means
and revives the robot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from vla_accel_ros.nodes.clients.operator import Operator

T = TypeVar("T")


class NodeDied(Exception):
    """A node's process has ended by itself. name: the node."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Driven(ABC):
    """A robot's running nodes and its operator."""

    operator: Operator

    @abstractmethod
    def raise_if_dead(self) -> None:
        """Raise NodeDied if a process has ended."""

    @abstractmethod
    def revive(self, name: str) -> None:
        """Return when the robot can be driven again after a node has ended."""

    def wait(self, condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """Wait as Operator.wait does. Raises NodeDied if a process ends meanwhile."""

        def watched() -> T | None:
            self.raise_if_dead()
            return condition()

        result = self.operator.wait(watched, timeout_s, what)
        assert result is not None  # wait returns a true value
        return result

    def call(self, request: Callable[[], T]) -> T:
        """Call a service. Raises NodeDied instead of TimeoutError if a process has ended meanwhile."""
        try:
            return request()
        except TimeoutError:
            self.raise_if_dead()
            raise
