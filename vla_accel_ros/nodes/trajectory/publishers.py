"""Detects a second publisher of joint states, of chunks, and above all of commands.

Two publishers that command one controller fight over the robot, and two that publish its joints make them
leap. A publisher that appears while the robot is active, on a topic that was not silent, is a second one: it
stops the robot until a person resumes. One that appears after a silence has replaced another. At activation
there may be publishers of a dead process, which the middleware forgets only after some 20 s. One beside us on
a topic of commands, or two on that of chunks, hold the robot for as long as they are there; two of which the
newer seems to have replaced the other, from when the middleware must have forgotten it. Several drivers may
share the joint states from the beginning. On the way home this node commands, and looks for others.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection

from vla_accel_ros.nodes.graph import name_of
from vla_accel_ros.nodes.trajectory.hold import Hold

Gid = tuple[int, ...]
LOOKS_HZ = 5.0
# Discovery runs in the background: publishers found in the first looks, within some seconds, were there
# before.
_FIRST_LOOKS, _DISCOVERY_S = 3, 3.0
# A publisher is discovered before its node. Its name is awaited for some looks; it may belong to no ROS node.
_UNNAMED, _UNNAMED_LOOKS = "_NODE_NAME_UNKNOWN_", 5
# A publisher that appears this soon after its topic was silent has replaced another.
_SILENCE_S = 1.0
# A process that died is not in the graph for longer.
_FORGOTTEN_S = 30.0


class Publishers:
    """Checks the publishers of a node's topics, LOOKS_HZ times a second.

    hold: holds the robot for what is found. states, chunks: topics that its node subscribes to. commands:
    topics on which the node has one publisher. writer: the node that writes chunks to shared memory, empty
    for none; it counts as a publisher of them. Attribute `beside`: sentences about present publishers that
    may pass by themselves.
    """

    def __init__(
        self,
        hold: Hold,
        states: str,
        chunks: str,
        commands: Collection[str],
        writer: Callable[[], str] = lambda: "",
    ) -> None:
        self._hold, self._states, self._chunks, self._commands = hold, states, chunks, commands
        self._writer = writer
        self.begin()

    def begin(self) -> None:
        """Start anew: publishers found in the next looks were there before. Called at activation, and when
        this node commands again."""
        self.beside: tuple[str, ...] = ()
        self._looks, self._began_s = 0, time.monotonic()
        self._silent_s: dict[str, float] = {}  # when a topic was last silent
        self._unnamed = Counter[Gid]()  # number of looks at a publisher without a known node
        self._came_s: dict[Gid, float] = {}  # when a publisher was first seen
        self._known: dict[str, set[Gid]] = {}
        self._doubtful: dict[str, set[Gid]] = {}

    def silent(self, topic: str) -> None:
        """Nothing arrives on a topic now."""
        self._silent_s[topic] = time.monotonic()

    def look(self) -> None:
        """Check the publishers, and hold the robot while it must not move."""
        lasting, passing = self._found(self._hold.released)
        for sentence in lasting:
            self._hold.fault(sentence)
        for sentence in set(self.beside) - set(passing):
            self._hold.resume(sentence)
        for sentence in passing:
            if sentence not in self.beside:
                self._hold.node.get_logger().error(sentence)
            self._hold.hold(sentence, passing=True)
        self.beside = tuple(passing)

    def _found(self, released: bool) -> tuple[list[str], list[str]]:
        """Sentences that need a person, and sentences that pass by themselves. released: others may command
        now."""
        now_s = time.monotonic()
        if released:
            self._known = {topic: gids for topic, gids in self._known.items() if topic not in self._commands}
            self._doubtful.clear()
        self._looks += 1
        first = self._looks <= _FIRST_LOOKS or now_s <= self._began_s + _DISCOVERY_S
        lasting, passing = [], []
        for topic in (self._states, self._chunks, *(() if released else self._commands)):
            others, ours = self._others(topic), topic in self._commands
            early = first or topic not in self._known
            before = self._known.get(topic, set())
            new = set(others) - before
            doubtful = self._doubtful.setdefault(topic, set())
            if ours or (early and topic == self._chunks):
                doubtful |= new
            second = {gid for gid in new if ours or not self._took_a_place(gid, topic, now_s)}
            if second and not early and (ours or before & set(others)):
                lasting.append(_sentence(topic, [others[gid] for gid in second], "has appeared", ours))
            if topic == self._chunks:
                stayed = {gid for gid in others if now_s - self._came_s.get(gid, now_s) > _FORGOTTEN_S}
                doubtful |= stayed if len(stayed) > 1 else set()
            doubtful &= set(others)
            for gone in before - set(others):  # the slot of a writer that comes again has the same id
                self._came_s.pop(gone, None)
            if len(doubtful) > (0 if ours else 1):
                names = [others[gid] for gid in doubtful]
                passing.append(_sentence(topic, names, "is there", ours))
            self._known[topic] = set(others)
        return lasting, passing

    def _took_a_place(self, gid: Gid, topic: str, now_s: float) -> bool:
        """Whether it appeared, named or not, soon after its topic was silent."""
        return self._came_s.get(gid, now_s) <= self._silent_s.get(topic, -math.inf) + _SILENCE_S

    def _others(self, topic: str) -> dict[Gid, str]:
        """Publishers of a topic that are not ours: id -> node. Of those with our name one is ours."""
        node = self._hold.node
        own, found, named = node.get_fully_qualified_name(), dict[Gid, str](), list[Gid]()
        for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic)):
            name, gid = name_of(info), tuple(info.endpoint_gid)
            self._came_s.setdefault(gid, time.monotonic())
            if info.node_name == _UNNAMED:
                self._unnamed[gid] += 1
                if self._unnamed[gid] <= _UNNAMED_LOOKS:
                    continue
                name = "a publisher outside ROS"
            if name == own:
                named.append(gid)
            else:
                found[gid] = name
        writer = self._writer() if topic == self._chunks else ""
        if writer and writer not in found.values():
            slot = (-1, *writer.encode())
            self._came_s.setdefault(slot, time.monotonic())
            found[slot] = writer
        if topic in self._commands:
            named = sorted(named)[1:]
        return found | dict.fromkeys(named, own)


def _sentence(topic: str, names: Collection[str], verb: str, ours: bool) -> str:
    who = ", ".join(sorted(set(names)))
    what = "another publisher of commands" if ours else "a second publisher"
    return f"{what} {verb} on {topic}: {who}; end it"
