"""Waits for robots whose nodes may die.

Every wait also watches the processes: it raises NodeDied if one has ended. The caller decides what that means
and revives the robot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from vla_accel_ros.nodes.clients.operator import Operator

T = TypeVar("T")


class NodeDied(Exception):
    """A node's process has ended by itself. name: the node."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Driven(Protocol):
    """A robot's running nodes and its operator.

    wait and call raise NodeDied if a process has ended. revive returns when the robot can be driven again.
    """

    operator: Operator

    def wait(self, condition: Callable[[], T | None], timeout_s: float, what: str) -> T: ...

    def call(self, request: Callable[[], T]) -> T: ...

    def revive(self, name: str) -> None: ...


def wait(
    operator: Operator,
    raise_if_dead: Callable[[], object],
    condition: Callable[[], T | None],
    timeout_s: float,
    what: str,
) -> T:
    """Wait as Operator.wait does, calling `raise_if_dead` before each check of the condition."""

    def watched() -> T | None:
        raise_if_dead()
        return condition()

    result = operator.wait(watched, timeout_s, what)
    assert result is not None  # wait returns a true value
    return result


def call(raise_if_dead: Callable[[], object], request: Callable[[], T]) -> T:
    """Call a service. If it times out and a process has ended, `raise_if_dead` replaces the TimeoutError."""
    try:
        return request()
    except TimeoutError:
        raise_if_dead()
        raise
