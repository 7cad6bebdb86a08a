"""Who else publishes what only one should: joint states, chunks, and above all commands.

Two who command one controller tear the robot between them, and two who tell its joints make them leap. A
publisher that comes while the robot is active, on a topic that was not silent, is a second one: it stops the
robot until a person resumes. One that comes after a silence took the place of another. At activation there
may be ghosts, publishers of a process that died, which the middleware takes some 20 s to forget: beside us on
a topic of commands, or two on that of chunks, they hold the robot for as long as they are there. Several
drivers may share the joint states from the beginning.
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
# The graph is discovered in the background: what the first looks, of so many seconds, find was there before.
_FIRST_LOOKS, _DISCOVERY_S = 3, 3.0
# A publisher is discovered before its node: it is waited for so many looks, since it may not be a ROS node's.
_UNNAMED, _UNNAMED_LOOKS = "_NODE_NAME_UNKNOWN_", 5
# A publisher that comes this soon after its topic was silent took the place of another.
_SILENCE_S = 1.0


class Publishers:
    """Looks at the publishers of a node's topics, LOOKS_HZ times a second.

    hold: holds the robot for what is found. states, chunks: topics its node listens to. commands: topics on
    which it has one publisher itself. writer: the node that writes chunks to shared memory, empty for none;
    it counts as a publisher of them. Attribute `beside`: sentences of what is there now, and goes by itself.
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
        """Those of the next looks were there before: at activation, and when we command again."""
        self.beside: tuple[str, ...] = ()
        self._looks, self._began_s = 0, time.monotonic()
        self._silent_s: dict[str, float] = {}  # when a topic was silent last
        self._unnamed = Counter[Gid]()  # looks at a publisher whose node is not known
        self._came_s: dict[Gid, float] = {}  # when a publisher was seen first
        self._known: dict[str, set[Gid]] = {}
        self._doubtful: dict[str, set[Gid]] = {}

    def silent(self, topic: str) -> None:
        """Nothing comes on a topic now."""
        self._silent_s[topic] = time.monotonic()

    def look(self) -> None:
        """Look, and hold the robot while it must not move."""
        lasting, passing = self._found(self._hold.lent)
        for sentence in lasting:
            self._hold.fault(sentence)
        for sentence in set(self.beside) - set(passing):
            self._hold.resume(sentence)
        for sentence in passing:
            if sentence not in self.beside:
                self._hold.node.get_logger().error(sentence)
            self._hold.hold(sentence, passing=True)
        self.beside = tuple(passing)

    def _found(self, lent: bool) -> tuple[list[str], list[str]]:
        """Sentences of what needs a person, and of what goes by itself. lent: others may command now."""
        now_s = time.monotonic()
        if lent:
            self._known = {topic: gids for topic, gids in self._known.items() if topic not in self._commands}
            self._doubtful.clear()
        self._looks += 1
        first = self._looks <= _FIRST_LOOKS or now_s <= self._began_s + _DISCOVERY_S
        lasting, passing = [], []
        for topic in (self._states, self._chunks, *(() if lent else self._commands)):
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
            doubtful &= set(others)
            if len(doubtful) > (0 if ours else 1):
                names = [others[gid] for gid in doubtful]
                passing.append(_sentence(topic, names, "is there", ours))
            self._known[topic] = set(others)
        return lasting, passing

    def _took_a_place(self, gid: Gid, topic: str, now_s: float) -> bool:
        """Whether it came, named or not, soon after its topic was silent."""
        return self._came_s.get(gid, now_s) <= self._silent_s.get(topic, -math.inf) + _SILENCE_S

    def _others(self, topic: str) -> dict[Gid, str]:
        """Publishers of a topic that are not ours: id -> node. Of those of our name one is ours."""
        node = self._hold.node
        own, found, named = node.get_fully_qualified_name(), dict[Gid, str](), list[Gid]()
        for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic)):
            name, gid = name_of(info), tuple(info.endpoint_gid)
            self._came_s.setdefault(gid, time.monotonic())
            if info.node_name == _UNNAMED:
                self._unnamed[gid] += 1
                if self._unnamed[gid] <= _UNNAMED_LOOKS:
                    continue
                name = "one that is not of a ROS node"
            if name == own:
                named.append(gid)
            else:
                found[gid] = name
        writer = self._writer() if topic == self._chunks else ""
        if writer and writer not in found.values():
            found[(-1, *writer.encode())] = writer
        if topic in self._commands:
            named = sorted(named)[1:]
        return found | dict.fromkeys(named, own)


def _sentence(topic: str, names: Collection[str], verb: str, ours: bool) -> str:
    who = ", ".join(sorted(set(names)))
    what = "another publisher of commands" if ours else "a second publisher"
    return f"{what} {verb} on {topic}: {who}; end it"
