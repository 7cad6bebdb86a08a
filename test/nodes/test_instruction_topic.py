"""An instruction is taken once, whatever its publisher offers and in whatever order its copies come."""

from __future__ import annotations

import pytest
from std_msgs.msg import String

from vla_accel_ros.nodes.instruction_topic import subscriptions

LATCHED, VOLATILE = 0, 1


class Robot:
    """What it has taken."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.now_s = 0.0
        ways = subscriptions(lambda message: self.taken.append(message.data), lambda: self.now_s)
        self._ways = [callback for callback, _, _ in ways]

    def hears(self, *messages: tuple[int, str]) -> list[str]:
        for way, text in messages:
            self._ways[way](String(data=text))
        return self.taken


@pytest.mark.parametrize("first", [LATCHED, VOLATILE])
def test_of_two_copies_of_two_instructions_in_any_order_each_is_taken_once(first):
    other = 1 - first
    heard_twice = [(first, "a"), (first, "b"), (other, "a"), (other, "b")]
    assert Robot().hears(*heard_twice) == ["a", "b"]
    assert Robot().hears((first, "a"), (other, "a"), (other, "b"), (first, "b")) == ["a", "b"]


def test_who_says_it_again_is_heard_again():
    later = [
        (VOLATILE, "a"),
        (LATCHED, "b"),
        (VOLATILE, "b"),
        (VOLATILE, "a"),
        (LATCHED, "b"),
        (VOLATILE, "b"),
    ]
    assert Robot().hears(*later) == ["a", "b", "a", "b"]
    robot = Robot()
    robot.hears((LATCHED, "a"))  # from before: only the latched subscription gets it
    robot.now_s = 60.0
    assert robot.hears((LATCHED, "b"), (VOLATILE, "b"), (VOLATILE, "a")) == ["a", "b", "a"]
