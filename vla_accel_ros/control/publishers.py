"""Detects a second publisher of joint states, of chunks, and above all of commands.

Two publishers that command one controller fight over the robot, and two that publish its joints make them
leap. A publisher that appears while the robot is active, on a topic that was not silent, is a second one: it
stops the robot until a person resumes. One that appears after a silence has replaced another. At activation
there may be publishers of a dead process, which the middleware forgets only after some 20 s. One beside us on
a topic of commands, or two on that of chunks, hold the robot for as long as they are there; two of which the
newer seems to have replaced the other, from when the middleware must have forgotten it. Several drivers may
share the joint states from the beginning. One of them that ends and comes back under its name has its own
place again, unless another has taken it meanwhile: then the robot stops, and is told that this one came back.
On the way home this node commands, and looks for others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.outputs.output import Clock

CHUNKS = "action_chunk"

Gid = tuple[int, ...]
Graph = Mapping[str, Sequence[tuple[Gid, str]]]
"""The publishers of each topic: id, and full name of the node, empty while that is unknown."""
LOOKS_HZ = 5.0
# Discovery runs in the background: publishers found in the first looks, within some seconds, were there
# before.
_FIRST_LOOKS, _DISCOVERY_S = 3, 3.0
# A publisher is discovered before its node. Its name is awaited for some looks; it may belong to no ROS node.
_UNNAMED_LOOKS = 5
# A publisher that appears this soon after its topic was silent has replaced another.
_SILENCE_S = 1.0
# A process that died is not in the graph for longer.
_FORGOTTEN_S = 30.0


class Causes(Protocol):
    """Why the robot stands, as far as the graph shows it."""

    hindrances: Mapping[str, Sequence[str]]
    silence: str

    def unheard(self, joint: str) -> Collection[str]:
        """Beginnings of the reasons for which a joint may not follow: nobody listens to its topics."""
        ...

    def look_for_joints(self) -> None:
        """Look for who should send the joint states, which are late."""
        ...

    def slow(self) -> str:
        """Why inputs that come are late, if that is known."""
        ...

    def chunks(self) -> str:
        """Why neither chunks nor reports of inference come."""
        ...


class Publishers:
    """Checks the publishers of a node's topics, LOOKS_HZ times a second.

    holds: hold the robot for what is found. own: full name of this node. states, chunks: topics that it
    subscribes to. commands: topics on which it has one publisher. Attribute `beside`: sentences about present
    publishers that may pass by themselves.
    """

    def __init__(
        self, holds: Holds, clock: Clock, own: str, states: str, chunks: str, commands: Collection[str]
    ) -> None:
        self._holds, self._clock, self._own = holds, clock, own
        self._states, self._chunks, self._commands = states, chunks, commands
        self.begin()

    def begin(self) -> None:
        """Start anew: publishers found in the next looks were there before. Called at activation, and when
        this node commands again."""
        self.beside: tuple[str, ...] = ()
        self._looks, self._began_s = 0, self._now_s()
        self._silent_s: dict[str, float] = {}  # when a topic was last silent
        self._unnamed = Counter[Gid]()  # number of looks at a publisher without a known node
        self._came_s: dict[Gid, float] = {}  # when a publisher was first seen
        self._known: dict[str, dict[Gid, str]] = {}
        self._drivers = Drivers()
        self._doubtful: dict[str, set[Gid]] = {}

    def silent(self, topic: str) -> None:
        """Nothing arrives on a topic now, or nothing of some joints."""
        now_s = self._now_s()
        if topic == self._states and now_s > self._silent_s.get(topic, -math.inf) + _SILENCE_S:
            self._drivers.fell_silent(self._known.get(topic, {}).values())
        self._silent_s[topic] = now_s

    def look(self, graph: Graph, writer: str) -> None:
        """Check the publishers, and hold the robot while it must not move. writer: the node that writes
        chunks to shared memory, empty for none; it counts as a publisher of them."""
        faults, passing = self._second(graph, writer, self._holds.released)
        for reason in faults:
            self._holds.fault(reason)
        for reason in set(self.beside) - set(passing):
            self._holds.resume(reason)
        for reason in passing:
            self._holds.hold(reason, passing=True)
        self.beside = tuple(passing)

    def _second(self, graph: Graph, writer: str, released: bool) -> tuple[list[str], list[str]]:
        """Sentences that need a person, and sentences that pass by themselves. released: others may command
        now."""
        now_s = self._now_s()
        if released:
            self._known = {topic: its for topic, its in self._known.items() if topic not in self._commands}
            self._doubtful.clear()
        self._looks += 1
        first = self._looks <= _FIRST_LOOKS or now_s <= self._began_s + _DISCOVERY_S
        faults, passing = [], []
        for topic in (self._states, self._chunks, *(() if released else self._commands)):
            publishers = self._others(topic, graph[topic], writer if topic == self._chunks else "")
            ours = topic in self._commands
            early = first or topic not in self._known
            previous = self._known.get(topic, {})
            new = publishers.keys() - previous
            doubtful = self._doubtful.setdefault(topic, set())
            if ours or (early and topic == self._chunks):
                doubtful |= new
            second = {gid for gid in new if ours or not self._took_a_place(gid, topic, now_s)}
            if topic == self._states:
                ended = [name for gid, name in previous.items() if gid not in publishers]
                second = self._drivers.look(publishers, new, second, ended)
            if second and not early and (ours or previous.keys() & publishers.keys()):
                faults.append(self._of_second(topic, publishers, second, ours))
            if topic == self._chunks:
                stayed = {gid for gid in publishers if now_s - self._came_s.get(gid, now_s) > _FORGOTTEN_S}
                doubtful |= stayed if len(stayed) > 1 else set()
            doubtful &= set(publishers)
            for gid in previous.keys() - publishers:  # the slot of a writer that comes again has the same id
                self._came_s.pop(gid, None)
            if len(doubtful) > (0 if ours else 1):
                names = [publishers[gid] for gid in doubtful]
                passing.append(_sentence(topic, names, "is there", ours))
            self._known[topic] = publishers
        return faults, passing

    def _of_second(self, topic: str, others: dict[Gid, str], second: set[Gid], ours: bool) -> str:
        """The sentence about publishers that have appeared beside others."""
        names = {others[gid] for gid in second}
        if topic != self._states or not names & self._drivers.replaced:
            return _sentence(topic, names, "has appeared", ours)
        neighbours = ", ".join(sorted(set(others.values()) - names))
        return (
            f"{', '.join(sorted(names))} has come back on {topic} beside {neighbours}, which took its place: "
            "end one of them"
        )

    def _took_a_place(self, gid: Gid, topic: str, now_s: float) -> bool:
        """Whether it appeared, named or not, soon after its topic was silent."""
        return self._came_s.get(gid, now_s) <= self._silent_s.get(topic, -math.inf) + _SILENCE_S

    def _others(self, topic: str, publishers: Sequence[tuple[Gid, str]], writer: str) -> dict[Gid, str]:
        """Publishers of a topic that are not ours: id -> node. Of those with our name one is ours."""
        others_by_id, named = dict[Gid, str](), list[Gid]()
        for gid, name in publishers:
            self._came_s.setdefault(gid, self._now_s())
            if not name:
                self._unnamed[gid] += 1
                if self._unnamed[gid] <= _UNNAMED_LOOKS:
                    continue
                name = "a publisher outside ROS"
            if name == self._own:
                named.append(gid)
            else:
                others_by_id[gid] = name
        if writer and writer not in others_by_id.values():
            slot = (-1, *writer.encode())
            self._came_s.setdefault(slot, self._now_s())
            others_by_id[slot] = writer
        if topic in self._commands:
            named = sorted(named)[1:]
        return others_by_id | dict.fromkeys(named, self._own)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() * 1e-9


class Drivers:
    """Whose place a new publisher of joint states takes.

    Attribute `replaced`: names of drivers whose place another may have taken.
    """

    def __init__(self) -> None:
        self.replaced = set[str]()
        self._places = set[str]()  # names before this silence
        self._takers = set[str]()  # names of those that came in it
        self._left = set[str]()

    def fell_silent(self, names: Collection[str]) -> None:
        """Some joints are silent, so one of these drivers may have ended."""
        self._places, self._takers = set(names), set()

    def look(
        self, others: Mapping[Gid, str], new: Collection[Gid], beside: Collection[Gid], gone: Collection[str]
    ) -> set[Gid]:
        """Those of the new publishers that took no place. others: all, with their names. beside: the new ones
        that did not come in a silence. gone: names of those that have ended."""
        self._left |= set(gone) - set(others.values())
        second = set()
        for gid in new:
            name = others[gid]
            if gid not in beside and len(self._takers | {name}) <= max(len(self._places), 1):
                self._takers.add(name)
                if name not in self._places:
                    self.replaced |= self._places
                self.replaced.discard(name)
            elif gid in beside and name in self._left and name not in self.replaced:
                self._left.discard(name)
            else:
                second.add(gid)
        return second


def _sentence(topic: str, names: Collection[str], verb: str, ours: bool) -> str:
    who = ", ".join(sorted(set(names)))
    publisher = "another publisher of commands" if ours else "a second publisher"
    return f"{publisher} {verb} on {topic}: {who}; end it"
