"""Plays a bag to its topics as it was recorded, with /clock: for viewers, and for the stack itself.

`ros2 bag play` does the same where it is installed; this one needs no rosbag2 and plays a bag whose recorder
was killed. Messages go out as bytes, with the quality of service they were recorded with, when /clock says
the time of their recording, so that nodes with use_sim_time see the same ages.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import rclpy
import yaml
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock

from vla_accel_ros.nodes import convert
from vla_accel_ros.sensing.bag import Bag, Entry

CLOCK_NS = 10_000_000
# For others to find the publishers before the first message.
SETTLE_S = 1.0
# What a policy sees and is told.
_INPUTS = ("sensor_msgs/msg/", "std_msgs/msg/String")
_NO_INPUT = ("/parameters",)


def play(bag: Bag, rate: float, inputs: bool, say: Callable[[str], object]) -> int:
    """Play all of it, or only what a policy sees and is told; returns the exit status.

    rate: seconds of the bag in one second. say: gets a sentence for the user now and then. Raises ValueError
    for a bag that is damaged or of types that are not installed.
    """
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("player", context=context, enable_rosout=False)
    try:
        bag.survey()
        player = Player(node, bag, rate)
        for entry in bag.entries():
            if not inputs or _is_input(entry):
                player.play(entry)
        say(f"played {player.played.total()} messages on {len(player.played)} topics")
    finally:
        node.destroy_node()
        context.try_shutdown()
    return 0


class Player:
    """Publishes entries when they are due. bag: surveyed. clock, wait: monotonic seconds, and how to wait
    some. Its publishers are open to view: `publishers` by topic and `clock`."""

    def __init__(
        self,
        node: Node,
        bag: Bag,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now_s, self._wait = clock, wait
        self.clock = node.create_publisher(Clock, "/clock", 10)
        self.publishers = {
            topic: node.create_publisher(_class_of(kind), topic, profile(bag.offered.get(topic, "")))
            for topic, kind in bag.topics.items()
        }
        self._begun: tuple[float, int] | None = None
        self._told_ns = 0
        self.played: Counter[str] = Counter()

    def play(self, entry: Entry) -> None:
        """Wait until it is due, telling the time meanwhile, and publish it."""
        self._advance(entry.log_ns)
        self.publishers[entry.topic].publish(entry.data)
        self.played[entry.topic] += 1

    def _advance(self, log_ns: int) -> None:
        if self._begun is None:
            self._wait(SETTLE_S)
            self._begun, self._told_ns = (self._now_s(), log_ns), log_ns - CLOCK_NS
        began_s, first_ns = self._begun
        while self._told_ns < log_ns:
            self._told_ns = min(self._told_ns + CLOCK_NS, log_ns)
            due_s = began_s + (self._told_ns - first_ns) * 1e-9 / self._rate
            self._wait(max(0.0, due_s - self._now_s()))
            message = Clock()
            convert.set_stamp(message.clock, self._told_ns)
            self.clock.publish(message)


def profile(offered: str) -> QoSProfile:
    """The quality of service of a recorded topic, from its metadata: words, or numbers before version 9."""
    try:
        listed = yaml.safe_load(offered)
    except yaml.YAMLError:
        listed = None
    first = listed[0] if isinstance(listed, list) and listed else {}
    best_effort = first.get("reliability") in ("best_effort", 2)
    latched = first.get("durability") in ("transient_local", 1)
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=max(10, int(first.get("depth") or 10)),
        reliability=ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def _is_input(entry: Entry) -> bool:
    return entry.type.startswith(_INPUTS) and not entry.topic.endswith(_NO_INPUT)


def _class_of(kind: str) -> Any:
    package, _, name = kind.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{kind} cannot be imported ({error}): install {package}") from error
