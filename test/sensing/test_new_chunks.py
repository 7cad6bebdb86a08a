"""Chunks of another process, looked for at times by hand: which of them are followed, and when."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from vla_accel_ros.control.chunking.chunk_record import ChunkWriter
from vla_accel_ros.sensing.chunk_slot import ChunkSlot
from vla_accel_ros.sensing.slot import SlotWriter
from vla_accel_ros.types import Chunk

JOINTS = ("a", "b")
_names = itertools.count()


class Bench:
    """A slot with its writer, and what was followed of it. took_s: that following one takes."""

    def __init__(self, most_hz: float = 0.0) -> None:
        self.name = f"test-{os.getpid()}-{next(_names)}-new"
        self.s, self.took_s = 100.0, 0.0
        self.followed: list[int] = []
        self.records = ChunkWriter(JOINTS, "/inference")
        self.writer = SlotWriter(self.name, self.records.most_bytes)
        self.slot = ChunkSlot(self.name, JOINTS, 500.0, most_hz, clock=lambda: self.s)

    def write(self, request: int) -> None:
        chunk = Chunk(np.zeros((3, 2), np.float32), 7, 0.1, 1, request, np.zeros(3, np.float32))
        self.writer.write(self.records.record(chunk, chunk.actions), chunk.stamp_ns)

    def poll(self, after_s: float = 0.002) -> bool:
        self.s += after_s
        return self.slot.poll(self._take)

    def _take(self, received: Callable[[], Chunk]) -> bool:
        self.s += self.took_s
        try:
            self.followed.append(received().request_id)
        except ValueError:
            return False
        return True


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.writer.close()


def test_of_several_new_ones_the_newest_is_followed_once(bench: Bench) -> None:
    assert not bench.poll()
    bench.write(1)
    assert bench.poll() and not bench.poll()
    for request in (2, 3):
        bench.write(request)
    assert bench.poll() and bench.followed == [1, 3]
    assert bench.slot.counts["overtaken"] == 1 and bench.slot.last == (7, 3)
    assert bench.slot.writer == "/inference" and bench.slot.came_s == bench.s


def test_what_was_there_before_is_not_followed(bench: Bench) -> None:
    bench.write(1)
    assert not bench.slot.is_empty
    bench.slot.begin()
    assert not bench.poll()


def test_what_is_refused_is_looked_at_once_and_does_not_count(bench: Bench) -> None:
    bench.writer.write(b"alien", 8)
    assert not bench.poll() and not bench.poll()
    assert bench.followed == [] and bench.slot.came_s == -float("inf")


@pytest.mark.parametrize(("took_s", "waits"), [(0.0009, False), (0.0011, True)])
def test_a_chunk_that_takes_half_of_a_period_leaves_the_next_ones_time_to_commands(
    bench: Bench, took_s: float, waits: bool
) -> None:
    bench.took_s = took_s
    bench.write(1)
    assert bench.poll()
    bench.write(2)
    assert bench.poll(0.0005) is not waits
    assert bench.poll(took_s) is waits


def test_an_ended_writer_leaves_it_closed(bench: Bench) -> None:
    bench.write(1)
    assert bench.poll() and bench.slot.is_open
    bench.writer.close()
    assert not bench.poll(0.2) and not bench.slot.is_open and bench.slot.writer == ""
