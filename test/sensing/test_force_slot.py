"""A force sensor's samples in shared memory: all that is new, in order, with their stamps."""

from __future__ import annotations

import struct
import zlib

import pytest
from rings import unique

from vla_accel_ros.sensing.force_slot import ForceReader, ForceWriter
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.sensing.slot import SlotWriter

WRENCH = (1.0, -2.0, 3.0, 0.1, 0.2, -0.3)


@pytest.fixture
def name():
    return unique("force")


def test_all_new_samples_are_read_once_in_order(name):
    writer, reader = ForceWriter(name), ForceReader(name)
    for k in range(5):
        writer.write((k, *WRENCH[1:]), 100 + k)
    assert reader.read() == [(100 + k, (float(k), *WRENCH[1:])) for k in range(5)]
    assert reader.read() == [] and reader.problem == ""
    writer.write(WRENCH, 200)
    assert reader.read() == [(200, WRENCH)]
    writer.close()


def test_a_value_that_is_no_row_of_numbers_is_an_empty_sample(name):
    writer, reader = SlotWriter(name, 64), ForceReader(name)
    writer.write(b"nonsense!", 1)
    assert reader.read() == [(1, ())]
    writer.close()


def test_the_file_is_laid_out_as_it_is_documented(name):
    """What a driver in another language relies on."""
    writer = ForceWriter(name)
    writer.write(WRENCH, 77)
    raw = segment_path(name).read_bytes()
    magic, version, places, most_bytes, _, check = struct.unpack_from("<8sIIIQI", raw)
    assert (magic, version, most_bytes) == (b"VLASLOT\n", 1, 64) and check == zlib.crc32(raw[:28])
    (newest,) = struct.unpack_from("<Q", raw, 64)
    step = -(-(24 + most_bytes) // 64) * 64
    offset = 128 + newest % places * step
    number, stamp, size, check = struct.unpack_from("<QqII", raw, offset)
    value = raw[offset + 24 : offset + 24 + size]
    assert (number, stamp, size) == (newest, 77, 48)
    assert check == zlib.crc32(value, zlib.crc32(raw[offset : offset + 20]))
    assert struct.unpack("<6d", value) == WRENCH
    writer.close()
