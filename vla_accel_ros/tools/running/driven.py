"""Waiting for robots whose nodes may die meanwhile.

Whatever is waited for, the processes are watched: one that has died is a NodeDied for whoever waits, who
decides what that means and revives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from vla_accel_ros.nodes.clients.operator import Operator

T = TypeVar("T")


class NodeDied(Exception):
    """A node's process has ended by itself. name: which."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Driven(Protocol):
    """The running nodes of a robot, and its operator. wait, call: raise NodeDied when one has ended. revive:
    returns when the robot is driven again."""

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
    """Operator.wait, in which `raise_if_dead` is called too."""

    def watched() -> T | None:
        raise_if_dead()
        return condition()

    result = operator.wait(watched, timeout_s, what)
    assert result is not None  # wait returns what is true
    return result


def call(raise_if_dead: Callable[[], object], request: Callable[[], T]) -> T:
    """A service call; NodeDied rather than TimeoutError when its node has ended meanwhile."""
    try:
        return request()
    except TimeoutError:
        raise_if_dead()
        raise
