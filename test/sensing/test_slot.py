"""The newest value in shared memory: whole, in order, and found again after its writer has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from rings import unique

from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.sensing.slot import SlotReader, SlotWriter


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def name():
    return unique("slot")


@pytest.fixture
def writer(name):
    writer = SlotWriter(name, most_bytes=64, places=4)
    yield writer
    writer.close()


def test_the_newest_value_is_read_whole_with_its_stamp(writer, name):
    reader = SlotReader(name)
    assert reader.newest() is None
    first = writer.write(b"one", 5)
    number = writer.write(b"two, longer", 7)
    entry = reader.newest()
    assert (entry.number, entry.stamp_ns, entry.data) == (number, 7, b"two, longer")
    assert number == first + 1


def test_nothing_is_there_before_the_writer_and_it_is_found_when_it_comes(name):
    clock = Clock()
    reader = SlotReader(name, clock)
    assert reader.newest() is None and not reader.is_open and reader.refused == ""
    writer = SlotWriter(name, 8)
    writer.write(b"x", 1)
    clock.s = 1.0
    assert reader.newest().data == b"x"
    writer.close()
    clock.s = 2.0
    assert reader.newest() is None and not reader.is_open


def test_since_gives_what_came_after_and_shows_what_was_overwritten(writer, name):
    reader = SlotReader(name)
    numbers = [writer.write(bytes([n]), n) for n in range(3)]
    assert [entry.data for entry in reader.since(numbers[0])] == [b"\x01", b"\x02"]
    assert reader.since(numbers[-1]) == []
    numbers += [writer.write(bytes([n]), n) for n in range(3, 9)]
    assert [entry.number for entry in reader.since(numbers[2])] == numbers[-4:]
    assert [entry.number for entry in reader.since(12)] == numbers[-4:]  # of another writer


def test_a_value_that_is_too_long_is_refused_and_the_last_one_stays(writer, name):
    writer.write(b"kept", 1)
    with pytest.raises(ValueError, match=r"65 bytes .* 64"):
        writer.write(bytes(65), 2)
    assert SlotReader(name).newest().data == b"kept"


def test_there_is_one_writer(writer, name):
    with pytest.raises(ValueError, match="is written"):
        SlotWriter(name, 8)


@pytest.mark.parametrize(("places", "most"), [(1, 8), (4, 0)])
def test_a_slot_that_cannot_be_is_refused(name, places, most):
    with pytest.raises(ValueError, match=r"2 .* 1"):
        SlotWriter(name, most, places)


def test_a_value_that_is_damaged_is_not_returned(writer, name):
    reader = SlotReader(name)
    writer.write(b"right", 1)
    whole = segment_path(name).read_bytes()
    offset = whole.index(b"right")
    for flipped in (offset, offset - 1, offset - 12, offset - 24):  # value, check, stamp, number
        with open(segment_path(name), "r+b") as file:
            file.seek(flipped)
            file.write(bytes([whole[flipped] ^ 1]))
        assert reader.newest() is None and reader.since(0) == []
        with open(segment_path(name), "r+b") as file:
            file.write(whole)
        assert reader.newest().data == b"right"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.write_bytes(b"x" * 4096), "is not a slot: remove"),
        (lambda path: _flip(path, 8), "has version 0, this program reads version 1"),
        (lambda path: _flip(path, 16), "is damaged: remove"),
        (lambda path: os.truncate(path, 100), "is not a slot: remove"),
        (lambda path: os.truncate(path, 256), "is damaged: remove"),
        (lambda path: path.chmod(0o666), "may be written by other users"),
    ],
)
def test_what_is_no_slot_of_ours_is_refused_in_a_sentence(writer, name, damage, sentence):
    writer.write(b"x", 1)
    damage(segment_path(name))
    reader = SlotReader(name)
    assert reader.newest() is None
    assert sentence in reader.refused and "\n" not in reader.refused


def test_a_slot_that_is_cut_short_while_it_is_read_gives_nothing(writer, name):
    clock = Clock()
    reader = SlotReader(name, clock)
    writer.write(b"x", 1)
    assert reader.newest() is not None
    os.truncate(segment_path(name), 80)
    assert reader.newest() is None and not writer.is_whole()


def test_nothing_torn_is_read_beside_a_writer_that_never_rests(name):
    writer, reader = SlotWriter(name, 4096, places=2), SlotReader(name)
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            writer.write(bytes([number % 251]) * (1 + number * 37 % 4096), number)

    thread = threading.Thread(target=write)
    thread.start()
    different, last = 0, 0
    try:
        while different < 1000:
            entry = reader.newest()
            if entry is None:
                continue
            different += entry.stamp_ns != last
            assert entry.data == bytes([entry.stamp_ns % 251]) * (1 + entry.stamp_ns * 37 % 4096)
            assert entry.stamp_ns >= last
            last = entry.stamp_ns
    finally:
        ended.set()
        thread.join()
        writer.close()


PROGRAM = """
import sys
from pathlib import Path
from vla_accel_ros.sensing import segment
from vla_accel_ros.sensing.slot import SlotWriter
segment.FOLDER = Path(sys.argv[2])
writer = SlotWriter(sys.argv[1], 8)
writer.write(b"alive", 3)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_writer_that_was_killed_is_followed_by_the_next(shared_memory, name):
    clock = Clock()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, str(shared_memory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    reader = SlotReader(name, clock)
    with process:
        assert process.stdout.readline() == b"ready\n"
        newest = reader.newest()
        assert newest.data == b"alive"
        process.send_signal(signal.SIGKILL)
    assert segment_path(name).exists()
    clock.s = 0.2
    assert reader.newest() is None and not reader.is_open  # what a dead one left is read by nobody
    assert SlotReader(name).newest() is None
    writer = SlotWriter(name, 8)  # it removes what the dead one left
    writer.write(b"next", 4)
    clock.s = 1.0
    successor = reader.newest()
    assert successor.data == b"next" and successor.number > newest.number
    assert [entry.data for entry in reader.since(newest.number)] == [b"next"]
    writer.close()


def _flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 1]))
