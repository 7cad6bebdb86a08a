"""Whence the trajectory node has its chunks, without a graph: a real slot, messages and clock by hand."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from world import Clock

from vla_accel_ros.control.chunking.chunk_record import ChunkWriter
from vla_accel_ros.control.chunking.source import SILENT_S, ChunkSource
from vla_accel_ros.sensing.chunk_slot import ChunkSlot
from vla_accel_ros.sensing.slot import SlotWriter
from vla_accel_ros.timeline import TIMELINE, flow
from vla_accel_ros.types import Chunk

TRAJECTORIES_HZ = 60.0
JOINTS = ("a", "b")
STAMP = 1_000_000_000_000
FUTURE = 1_000_000_000
"""Requests from here on are stamped a second ahead, and refused."""
_names = itertools.count()


class Bench:
    """A source, what it gave to be followed, and the writer of its slot. took_s: that following one takes."""

    def __init__(self, wanted: str, most_hz: float) -> None:
        self.name, self.s, self.took_s = f"test-{os.getpid()}-{next(_names)}-chunks", 100.0, 0.0
        self.followed: list[int] = []
        self.refused: list[str] = []
        self.lost: list[str] = []
        self.log: list[tuple[str, str]] = []
        self.writer: SlotWriter | None = None
        self.open()
        slot = None
        if wanted != "topic":
            track, clock = "topic /r/action_chunk", lambda: self.s
            slot = ChunkSlot(self.name, JOINTS, 500.0, most_hz, track=track, clock=clock)
        steady = Clock(lambda: round(self.s * 1e9))
        self.source = ChunkSource(self, steady, self.log, slot, listens=wanted != "slot")

    def open(self) -> None:
        """A writer, the next one."""
        self.records = ChunkWriter(JOINTS, "/inference")
        self.writer = SlotWriter(self.name, self.records.most_bytes)

    def close(self) -> None:
        """End it."""
        if self.writer is not None:
            self.writer.close()

    def write(self, request: int) -> None:
        """A chunk into the slot."""
        assert self.writer is not None
        chunk = self._chunk(request)
        self.writer.write(self.records.record(chunk, chunk.actions), chunk.stamp_ns)

    def message(self, request: int) -> bool:
        """A chunk by the topic; whether it is to be followed."""
        return self.source.takes((self._chunk(request).stamp_ns, request))

    def came(self, request: int) -> None:
        """A chunk by the topic, in the node's callback."""
        chunk = self._chunk(request)
        self.source.receive(lambda: chunk, (chunk.stamp_ns, request))

    def polled(self, after_s: float = 0.0) -> list[int]:
        """What was followed after so long."""
        self.s += after_s
        self.source.poll()
        followed, self.followed = self.followed, []
        return followed

    @property
    def said(self) -> str:
        """All of the log."""
        return "\n".join(line for _, line in self.log)

    def _chunk(self, request: int) -> Chunk:
        zeros = np.zeros((3, len(JOINTS)), np.float32)
        return Chunk(zeros, STAMP + request, 0.1, 1, request, np.zeros(3, np.float32))

    def lose_slot(self, why: str) -> None:
        """See Follows."""
        self.lost.append(why)

    def take(self, received: Callable[[], Chunk]) -> bool:
        """See Follows."""
        self.s += self.took_s
        try:
            chunk = received()
            if chunk.request_id >= FUTURE:
                raise ValueError("chunk was observed 1.000 s from now")
            self.followed.append(chunk.request_id)
        except ValueError as refusal:
            self.refused.append(str(refusal))
            return False
        return True


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def make(wanted: str = "auto", most_hz: float = 0.0) -> Bench:
        benches.append(Bench(wanted, most_hz))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def test_each_chunk_is_followed_once_and_of_several_the_newest(make: Make):
    bench = make()
    assert bench.polled() == []
    bench.write(1)
    assert bench.polled(0.002) == [1] and bench.polled(0.002) == []
    for request in (2, 3, 4):
        bench.write(request)
    assert bench.polled(0.002) == [4]
    assert bench.source.counts["overtaken"] == 2 and bench.source.counts["by slot"] == 2


def test_what_was_there_before_is_never_followed(make: Make):
    bench = make()
    bench.write(1)
    bench.source.begin()  # activated, or the clock has jumped
    assert bench.polled(0.01) == []
    bench.write(2)
    assert bench.polled(0.01) == [2]


def test_a_message_of_a_chunk_that_the_slot_had_is_not_followed_again(make: Make):
    bench = make()
    bench.write(1)
    assert not bench.message(1) and bench.followed == [1]  # the slot is looked into first
    bench.s += 10 * SILENT_S
    assert not bench.message(1)  # also one that was long on its way


def test_the_newest_wins_where_the_slot_is_silent(make: Make):
    bench = make()
    bench.write(1)
    assert bench.polled(0.002) == [1]
    assert not bench.message(2)  # of whoever tells it: the slot is fresh
    bench.s += 2 * SILENT_S
    assert not bench.message(1)  # the slot had that
    assert bench.message(3) and bench.source.used == "topic"
    bench.write(4)
    assert not bench.message(4) and bench.followed == [4] and bench.source.used == "slot"
    assert "chunks come from action_chunk" in bench.said and "from the slot of /inference" in bench.said


def test_a_writer_that_has_ended_leaves_the_topic_and_the_next_is_found(make: Make):
    bench = make()
    bench.write(1)
    assert bench.polled(0.002) == [1]
    bench.close()
    assert bench.polled(0.15) == [] and "the chunk slot is no longer used: " in bench.said
    assert bench.lost == [f"the process that wrote chunk slot {bench.name} has ended"]
    assert bench.source.writer == "" and "living writer" in bench.source.problem
    bench.s += 2 * SILENT_S
    assert bench.message(2)
    bench.open()
    bench.write(3)
    assert bench.polled(0.15) == [3] and bench.source.writer == "/inference"


def test_what_is_no_chunk_is_refused_once_and_is_not_fresh(make: Make):
    bench = make()
    bench.write(1)
    assert bench.polled(0.002) == [1]
    assert bench.writer is not None
    bench.writer.write(b"alien", STAMP + 2)
    assert bench.polled(0.002) == [] and bench.polled(0.002) == []
    assert len(bench.refused) == 1 and "5 bytes that are not a chunk" in bench.refused[0]
    bench.s += 2 * SILENT_S
    assert bench.message(3)  # so the topic takes over


def test_a_refused_chunk_of_the_future_does_not_keep_out_the_topic(make: Make):
    bench = make()
    bench.write(FUTURE)
    assert bench.polled(0.002) == [] and len(bench.refused) == 1
    bench.s += 2 * SILENT_S
    assert bench.message(2)


def test_long_chunks_leave_others_as_much_time_as_they_take(make: Make):
    bench = make()
    bench.took_s = 0.004
    bench.write(1)
    assert bench.polled(0.002) == [1]
    bench.write(2)
    assert bench.polled(0.002) == []
    assert bench.polled(0.0025) == [2]


@pytest.mark.parametrize(("takes_s", "at_once", "followed"), [(0.02, 1, [0, 4]), (0.002, 5, [0, 1, 2, 3, 4])])
def test_a_flood_of_long_messages_leaves_others_their_turn_and_the_newest_is_followed(
    make, takes_s, at_once, followed
):
    bench = make("topic")
    bench.took_s = takes_s
    for request in range(5):
        bench.came(request)
    bench.source.follow_newest()
    assert bench.followed == followed[:at_once]
    bench.s += takes_s
    for _ in range(2):
        bench.source.follow_newest()
    assert bench.followed == followed


def test_a_message_that_waits_when_the_motion_starts_anew_is_never_followed(make: Make):
    bench = make("topic")
    bench.took_s = 0.02
    bench.came(1)
    bench.came(2)
    bench.source.begin()
    bench.s += 1.0
    bench.source.follow_newest()
    assert bench.followed == [1]


def test_whole_trajectories_are_sent_at_sixty_a_second(make: Make):
    bench = make("slot", TRAJECTORIES_HZ)
    followed = 0
    for request in range(1, 481):
        bench.write(request)
        followed += len(bench.polled(1 / 480))
    assert 50 <= followed <= 60


def test_what_comes_by_the_slot_is_on_the_timeline(make: Make) -> None:
    bench = make()
    begun_ns = TIMELINE.now_ns()
    bench.write(3)
    bench.polled(0.01)
    bench.polled(0.01)
    (event,) = [event_ for event_ in TIMELINE.events(begun_ns) if event_.detail == "slot"]
    assert (event.track, event.name) == ("topic /r/action_chunk", "read")
    assert event.flows == (flow(STAMP + 3),)
