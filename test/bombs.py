"""Small inputs that ask for much, and what becomes of the memory of whoever reads them.

tracemalloc does not see what C libraries allocate, so the reader is a child process, and its memory what the
kernel says it had at most.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from mcap.writer import CompressionType, Writer

MOST_MB = 200.0


@dataclass(frozen=True)
class Refused:
    """What a reader said, the most memory it took beyond what it had, and its time, which no test asserts."""

    sentence: str
    peak_mb: float
    seconds: float


def refused(read: Callable[[], object], kind: type[Exception] = ValueError) -> Refused:
    """Have a child process read it. Raises AssertionError unless it raises `kind`, within MOST_MB."""
    ours, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            os.write(writer, pickle.dumps(_read(read, kind)))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer, "the reader ended by a signal"
    result: Refused = pickle.loads(answer)
    assert result.peak_mb < MOST_MB, result
    assert "\n" not in result.sentence and len(result.sentence) < 2000, result
    return result


def _read(read: Callable[[], object], kind: type[Exception]) -> Refused:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before_mb, began_s = _peak_mb(), time.perf_counter()
    try:
        read()
        text = ""
    except kind as error:
        text = str(error)
    except BaseException as error:  # the test says which it was
        text = f"{type(error).__name__}\n{error}"
    return Refused(text[:4000], _peak_mb() - before_mb, time.perf_counter() - began_s)


def _peak_mb() -> float:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def jpeg_of_scans(height: int, width: int, scans: int) -> bytes:
    """A black progressive JPEG whose last scan, a few bytes, is there so many times more."""
    black = np.zeros((height, width, 3), np.uint8)
    good, coded = cv2.imencode(".jpg", black, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    assert good
    file = coded.tobytes()
    last = file.rindex(b"\xff\xda")
    return file[:-2] + file[last:-2] * scans + file[-2:]


def jpeg_that_claims(height: int, width: int) -> bytes:
    """A JPEG of 16 x 16 whose frame header says another size."""
    good, coded = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))
    assert good
    file = coded.tobytes()
    position = file.index(b"\xff\xc0") + 5
    return file[:position] + struct.pack(">HH", height, width) + file[position + 4 :]


def black_png(height: int, width: int) -> bytes:
    """A whole PNG of nothing but black."""
    good, coded = cv2.imencode(
        ".png", np.zeros((height, width, 3), np.uint8), [cv2.IMWRITE_PNG_COMPRESSION, 9]
    )
    assert good
    return coded.tobytes()


def bag_of_zeros(path: Path, megabytes: int, compression: CompressionType) -> Path:
    """An MCAP file whose one chunk is zeros, compressed to little."""
    import lz4.frame
    import zstandard

    pack = zstandard.compress if compression is CompressionType.ZSTD else lz4.frame.compress
    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.NONE)
        writer.start("ros2")
        zeros = bytes(megabytes << 20)
        data = pack(zeros)
        name = "zstd" if compression is CompressionType.ZSTD else "lz4"
        body = struct.pack("<QQQI", 0, 0, len(zeros), zlib.crc32(zeros))
        body += struct.pack("<I", len(name)) + name.encode() + struct.pack("<Q", len(data)) + data
        file.write(struct.pack("<BQ", 6, len(body)) + body)
        writer.finish()
    return path


def bag_of_a_type(path: Path, definition: str, data: bytes) -> Path:
    """An MCAP file with one message on /bomb of the type bomb_msgs/msg/Bomb."""
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("bomb_msgs/msg/Bomb", "ros2msg", definition.encode())
        writer.add_message(writer.register_channel("/bomb", "cdr", schema), 0, b"\0\1\0\0" + data, 0)
        writer.finish()
    return path


def bag_of_topics(path: Path, count: int) -> Path:
    """An MCAP file with so many topics and nothing on them."""
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        for number in range(count):
            writer.register_channel(f"/topic_{number}", "cdr", schema)
        writer.finish()
    return path
