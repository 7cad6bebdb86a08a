"""Whatever stands in a ring's header and records: a clear refusal or the right pixels, never anything else.

FUZZ_CASES sets how many cases there are, 10,000 unless told otherwise; `make fuzz` runs a million.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rings import known_image, unique, whole

from vla_accel_ros.sensing.cameras.frames import Lease, NotReady
from vla_accel_ros.sensing.cameras.ring import (
    Geometry,
    Handle,
    RingWriter,
    pack_header,
    pack_record,
    read_header,
    read_record,
)
from vla_accel_ros.sensing.cameras.ring_reader import RingReader
from vla_accel_ros.sensing.segment import segment_path

H, W, SLOTS = 6, 5, 3
CASES = int(os.environ.get("FUZZ_CASES", 10_000))


class Bench:
    """A ring with a frame in every slot, and its bytes to tamper with and restore. first: frame's number."""

    def __init__(self, first: int = 1_790_000_000_000_000_000) -> None:
        self.name = unique("fuzz")
        self.writer = RingWriter(self.name, H, W, SLOTS, clock=lambda: first)
        self.handles = [self.writer.write(known_image(stamp, H, W), stamp) for stamp in range(7)]
        with segment_path(self.name).open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.end = self.writer.geometry.record_at(SLOTS)
        self.good = self.memory[: self.end]

    def reader(self, copy: bool = False) -> RingReader:
        return RingReader({"front": self.name}, copy, page_lock=False)

    def restore(self) -> None:
        self.memory[: self.end] = self.good

    def look(self, reader: RingReader) -> None:
        """Have a frame every way there is; all that comes is whole or a reason."""
        for lease in (reader.newest_set(("front",), 0.0), reader.take(self.handles[-1])):
            assert isinstance(lease, NotReady) or (lease.intact() and whole(lease))
            if isinstance(lease, Lease):
                lease.release()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    with bench.writer:
        yield bench


STARTS = range(1_790_000_000_000_000_000, 1_790_000_000_000_000_006)


def tampered(chance: random.Random, good: bytes, begin: int, end: int) -> bytes:
    """The bytes from begin to end: some flipped, overwritten, moved or repeated."""
    data = bytearray(good[begin:end])
    for _ in range(chance.choice((1, 1, 2, 5))):
        offset, length = chance.randrange(len(data)), chance.choice((1, 1, 2, 4, 8, 64))
        kind = chance.randrange(4)
        if kind == 0:
            data[offset] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[offset : offset + length] = chance.randbytes(min(length, len(data) - offset))
        elif kind == 2:
            filler = chance.choice((b"\0", b"\xff"))
            data[offset : offset + length] = filler * min(length, len(data) - offset)
        else:
            step = chance.randrange(0, len(data), 8)
            moved = good[begin + step : begin + step + 64]
            to = chance.randrange(0, len(data), 8)
            data[to : to + len(moved)] = moved[: len(data) - to]
    return bytes(data)


@pytest.mark.parametrize("copy", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("start", STARTS)
def test_damaged_records_under_an_open_ring(start, copy):
    chance, bench = random.Random(start + copy), Bench(start)
    cases = CASES * (1 if copy else 5) // 10 // len(STARTS)
    with bench.writer:
        reader, first = bench.reader(copy), bench.writer.geometry.record_at(0)
        for _ in range(cases):
            bench.memory[first : bench.end] = tampered(chance, bench.good, first, bench.end)
            bench.look(reader)
        bench.restore()
        bench.look(reader)
        assert reader.newest("front").frames["front"].stamp_ns == 6
        assert reader.counts("front").damaged > cases / 10


@pytest.mark.parametrize("slots", [2, 3, 4, 5, 8])
def test_a_record_whose_rest_is_another_slots_is_damaged(slots):
    geometry = Geometry(slots, H, W)
    for number in range(1000, 1100):
        for other in range(number + 1, number + slots):
            own_name, other_name = (
                pack_record(n % slots, 2 * n + 2, n, geometry.frame_bytes) for n in (number, other)
            )
            for cut in (0, 8, 16, 24):
                mixed = read_record(own_name[:cut] + other_name[cut:], number % slots, geometry)
                assert mixed is not None and mixed.damaged


def test_damaged_headers_when_a_ring_is_opened(bench):
    chance, refused = random.Random(2), 0
    for _ in range(CASES * 3 // 10):
        bench.memory[:64] = tampered(chance, bench.good, 0, 64)
        reader = bench.reader()
        bench.look(reader)
        refused += reader.counts("front").opened == 0
    assert refused > CASES * 2 // 10
    bench.restore()
    assert bench.reader().newest("front").frames["front"].stamp_ns == 6


def test_handles_of_all_kinds(bench):
    chance, reader = random.Random(3), bench.reader()
    numbers = (0, 1, SLOTS - 1, SLOTS, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
    leases = 0
    for _ in range(CASES // 10):
        handle = vars(chance.choice(bench.handles)).copy()
        for field in chance.sample(("slot", "sequence", "stamp_ns", "height", "width"), chance.randrange(3)):
            handle[field] = chance.choice((*numbers, handle[field] + chance.randrange(-2, 3)))
        lease = reader.take(Handle(**handle))
        if not isinstance(lease, NotReady):
            assert lease.frames["front"].stamp_ns == handle["stamp_ns"] and whole(lease)
            leases += 1
    assert leases > CASES / 100


@given(
    slots=st.integers(0, 2**32 - 1),
    height=st.integers(0, 2**32 - 1),
    width=st.integers(0, 2**32 - 1),
    size=st.integers(0, 2**64),
)
def test_a_header_that_is_well_formed_must_fit_the_file(slots, height, width, size):
    geometry = Geometry(slots, height, width)
    if geometry.size < 2**64 and slots and height and width:
        head = pack_header(geometry)
        assert read_header("front", head, geometry.size) == (geometry, os.getpid())
        if size != geometry.size:
            with pytest.raises(ValueError, match=f"ring 'front' has {size} bytes, {slots} slots of"):
                read_header("front", head, size)
