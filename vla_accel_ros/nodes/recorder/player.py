"""Plays a bag to its topics as it was recorded, with /clock: for the stack itself, and for viewers.

Only inputs are played unless commands are asked for, and no topic that another node publishes: a recorded
picture between those of a live camera, or a recorded command to a live controller, would cause unwanted
motion. The graph is checked before the first message and again while playing.

`ros2 bag play` does the same without this care, if it is installed; this player needs no rosbag2 and plays a
bag whose recorder was killed. Messages go out as bytes, with the QoS they were recorded with, when /clock
shows the time of their recording, so nodes with use_sim_time see the same ages. Where the clock was set
during the recording, /clock is set too, and the next message is played at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from uuid import uuid4

import rclpy
import yaml
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rclpy.topic_endpoint_info import TopicEndpointInfo
from rosgraph_msgs.msg import Clock

from vla_accel_ros.contract.files import bounded_yaml
from vla_accel_ros.nodes.graph import name_of
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.shutdown import leave_graph
from vla_accel_ros.recording.jumps import jump_ns
from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.recording.robots import measured_forces
from vla_accel_ros.recording.roles import Role, role

CLOCK_NS = 10_000_000
# Time for others to find the publishers before the first message.
SETTLE_S = 1.0
# Discovery counts as complete when the graph has not changed for this long; a busy machine discovers slowly.
DISCOVERY_S, LONGEST_DISCOVERY_S = 3.0, 15.0
# How often the graph is checked afterwards.
LOOK_S = 0.5
SAY_S = 5.0
CLOCK = "/clock"


def play(bag: Bag, rate: float, commands: bool, say: Callable[[str], object]) -> int:
    """Play the inputs of a bag, or all of it; returns the exit status.

    rate: seconds of the bag in one second. commands: also play what is not an input. say: called with
    sentences for the user. Raises ValueError if the bag is damaged, has types that are not installed, or has
    nothing to play, and if another node publishes a topic or subscribes to a command.
    """
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    # The name of a node identifies its endpoints, and there may be another player.
    node = rclpy.create_node(f"player_{uuid4().hex[:8]}", context=context, enable_rosout=False)
    try:
        bag.survey()
        played = inputs(bag)
        # Never a recorded /clock, since the player's own has the recorder's time.
        topics = (set(bag.topics) if commands else played) - {CLOCK}
        skipped = sorted(set(bag.topics) - topics - {CLOCK})
        if skipped:
            say(f"not played without --commands: {', '.join(skipped)}")
        if not topics:
            raise ValueError(f"{bag.path} has no input to play: give --commands to play its other topics")
        wait_for_discovery(node)
        moving = {t for t in topics - played if role(t, bag.topics[t]) is Role.COMMAND}
        refuse_alive(node, topics, moving)
        player = Player(node, bag, rate, topics, look=partial(refuse_alive, node, topics, moving), say=say)
        for entry in bag.entries():
            player.play(entry)
        say(f"played {player.played.total()} messages on {len(player.played)} topics")
    finally:
        leave_graph(node, context)
    return 0


def inputs(bag: Bag) -> set[str]:
    """The topics of a surveyed bag that are inputs of a policy or measured forces."""
    return {t for t, kind in bag.topics.items() if role(t, kind) is Role.INPUT} | measured_forces(bag)


def wait_for_discovery(
    node: Node, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], object] = time.sleep
) -> None:
    """Return when no new node or topic has appeared for DISCOVERY_S, or after LONGEST_DISCOVERY_S."""
    began_s = changed_s = clock()
    graph: object = None
    while clock() - changed_s < DISCOVERY_S and clock() - began_s < LONGEST_DISCOVERY_S:
        wait(LOOK_S / 5)
        newest = sorted(node.get_node_names_and_namespaces()), sorted(node.get_topic_names_and_types())
        if newest != graph:
            graph, changed_s = newest, clock()


def refuse_alive(node: Node, topics: Collection[str], commands: Collection[str]) -> None:
    """Raises ValueError if a node other than `node` publishes one of the topics or /clock, or subscribes to
    one of the commands among them."""
    for topic in (CLOCK, *sorted(topics)):
        publisher = _others(node, node.get_publishers_info_by_topic(topic))
        if publisher:
            raise ValueError(
                f"{topic} is published by {publisher} already, and the messages would mix: stop that node, "
                "or play in another ROS_DOMAIN_ID"
            )
        listeners = _others(node, node.get_subscriptions_info_by_topic(topic))
        if listeners and topic in commands:
            raise ValueError(
                f"{topic} is a command and {listeners} subscribes to it, so a robot might move: stop that "
                "node, or play in another ROS_DOMAIN_ID"
            )


def _others(node: Node, there: Collection[TopicEndpointInfo]) -> str:
    return ", ".join(sorted(set(map(name_of, there)) - {node.get_fully_qualified_name()}))


class Player:
    """Publishes entries of some topics when they are due.

    bag: surveyed. clock: monotonic seconds; wait: sleeps for some seconds. look: called every LOOK_S, may
    raise. say: called with a sentence every SAY_S. Attributes: `publishers` by topic, `clock`, `played`.
    """

    def __init__(
        self,
        node: Node,
        bag: Bag,
        rate: float,
        topics: Collection[str],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
        look: Callable[[], object] = lambda: None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._bag, self._rate, self._look = bag, rate, look
        self._now_s, self._wait, self._say = clock, wait, say
        self.clock = node.create_publisher(Clock, CLOCK, 10)
        self.publishers = {}
        for topic in sorted(topics):
            kind = interface(bag.topics[topic], f"playing {topic}")
            self.publishers[topic] = node.create_publisher(kind, topic, profile(bag.offered.get(topic, "")))
        self._begun: tuple[float, int] | None = None
        self._told_ns = self._before_ns = 0
        self._looked_s = self._said_s = 0.0
        self.played: Counter[str] = Counter()

    def play(self, entry: Entry) -> None:
        """Wait until the entry is due, publishing /clock meanwhile, and publish it if it is of a chosen
        topic."""
        self._advance(entry.log_ns)
        if entry.topic in self.publishers:
            self.publishers[entry.topic].publish(entry.data)
            self.played[entry.topic] += 1

    def _advance(self, log_ns: int) -> None:
        if self._begun is None:
            self._wait(SETTLE_S)
            self._begun, self._told_ns = (self._now_s(), log_ns), log_ns - CLOCK_NS
            self._said_s = self._now_s()
        began_s, first_ns = self._begun
        if by_ns := jump_ns(self._told_ns, log_ns):
            self._before_ns += self._told_ns - first_ns
            self._say(f"the clock of the recording was set by {by_ns * 1e-9:.3f} s")
            began_s, first_ns = self._begun = (self._now_s(), log_ns)
            self._told_ns = log_ns - CLOCK_NS
        while self._told_ns < log_ns:
            self._told_ns = min(self._told_ns + CLOCK_NS, log_ns)
            due_s = began_s + (self._told_ns - first_ns) * 1e-9 / self._rate
            self._wait(max(0.0, due_s - self._now_s()))
            self._tell(self._before_ns + self._told_ns - first_ns)
            message = Clock()
            convert.set_stamp(message.clock, self._told_ns)
            self.clock.publish(message)

    def _tell(self, played_ns: int) -> None:
        """Check the graph, and report the progress, each at its own interval."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        if now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            whole = f" of {self._bag.extent_ns * 1e-9:.0f} s" if self._bag.extent_ns else ""
            self._say(f"at {played_ns * 1e-9:.0f} s{whole}, {self.played.total()} messages played")


def profile(offered: str) -> QoSProfile:
    """The QoS profile of a recorded topic, from its metadata: words, or numbers before version 9."""
    try:
        listed = bounded_yaml.load(offered)
    except (yaml.YAMLError, ValueError, RecursionError):
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
