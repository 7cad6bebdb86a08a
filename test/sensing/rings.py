"""Rings for tests: names nobody else has, frames whose stamp tells their pixels, peers in other processes.

A peer is a real process, started anew (spawn), that does one thing at a time when told through its pipe.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from vla_accel_ros.sensing import segment
from vla_accel_ros.sensing.cameras.frames import Frame, Lease, NotReady
from vla_accel_ros.sensing.cameras.ring import Handle, RingWriter
from vla_accel_ros.sensing.cameras.ring_reader import RingReader

KNOWN = 13
H, W = 6, 5
_numbers = itertools.count()


def unique(name: str) -> str:
    """A ring name no other test and no other test run has."""
    return f"test-{os.getpid()}-{next(_numbers)}-{name}"


def left_over(name: str) -> list[str]:
    """What there is in shared memory of rings whose name contains this."""
    return sorted(path.name for path in segment.FOLDER.glob(f"{segment.PREFIX}*{name}*"))


def known_image(stamp_ns: int, height: int, width: int) -> np.ndarray:
    """The only image of that stamp: noise, its last four bytes the checksum of the others and the stamp."""
    image = np.random.default_rng(stamp_ns % KNOWN).integers(0, 256, (height, width, 3), np.uint8)
    flat = image.reshape(-1)
    flat[-4:] = np.frombuffer(_checksum(flat, stamp_ns).to_bytes(4, "little"), np.uint8)
    return image


def is_whole(frame: Frame) -> bool:
    """Whether the pixels are those of the frame's stamp, all of them."""
    flat = np.ascontiguousarray(frame.image).reshape(-1)
    return int.from_bytes(flat[-4:].tobytes(), "little") == _checksum(flat, frame.stamp_ns)


def whole(found: Lease | NotReady | None) -> bool:
    """Whether there is nothing, or nothing but whole frames."""
    return not isinstance(found, Lease) or all(is_whole(frame) for frame in found.frames.values())


def _checksum(flat: np.ndarray, stamp_ns: int) -> int:
    return zlib.crc32(flat[:-4].data, stamp_ns % KNOWN)


@contextmanager
def peer(work: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Another process that runs work(connection, *arguments), and the other end of its connection."""
    context = multiprocessing.get_context("spawn")
    ours, child_end = context.Pipe()
    process = context.Process(target=work, args=(child_end, *arguments), daemon=True)
    process.start()
    child_end.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.join(20)
        process.kill()
        process.join()


def told(connection: Connection) -> Iterator[Any]:
    """What the other end sends, until it closes or is dead."""
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


def write_when_told(connection: Connection, name: str, height: int, width: int, slots: int) -> None:
    """A writer. An integer: write the frame of that stamp; "half": stay in the middle of writing one."""
    with RingWriter(name, height, width, slots) as writer:
        for order in told(connection):
            if order == "half":
                with writer.slot(0) as pixels:
                    pixels[: height // 2] = 0
                    connection.send(order)
                    connection.recv()
            else:
                connection.send(writer.write(known_image(order, height, width), order))


def write_fast(connection: Connection, name: str, height: int, width: int, slots: int) -> None:
    """A writer as fast as can be, until the other end says or sends anything."""
    images = [known_image(stamp, height, width) for stamp in range(KNOWN)]
    with RingWriter(name, height, width, slots) as writer:
        for stamp in itertools.count():
            writer.write(images[stamp % KNOWN], stamp)
            if stamp == slots:
                connection.send("running")
            if stamp % 64 == 0 and connection.poll():
                return


def read_when_told(connection: Connection, name: str) -> None:
    """A reader that keeps every lease it takes. Anything: take the newest frame, answer with its stamp."""
    reader, leases = RingReader({"front": name}, copy=False, page_lock=False), []
    for _ in told(connection):
        leases.append(reader.newest("front"))
        connection.send(leases[-1].frames["front"].stamp_ns)


def make_reader(name: str, copy: bool | None = False) -> RingReader:
    """A reader of one ring as camera front."""
    return RingReader({"front": name}, copy, page_lock=False)


def put(writer: RingWriter, *stamps: int) -> Handle:
    """Write the known frames of these stamps; the last one's handle."""
    for stamp in stamps:
        handle = writer.write(known_image(stamp, H, W), stamp)
    return handle


def newest_stamp(reader: RingReader) -> int | None:
    """The stamp of the newest frame, which is whole; None without one."""
    lease = reader.newest("front")
    if lease is None:
        return None
    with lease:
        assert is_whole(lease.frames["front"]) and lease.intact()
        return lease.frames["front"].stamp_ns


def why_not(reader: RingReader) -> str:
    """Why there is no frame."""
    refusal = reader.newest_set(("front",), 0.0)
    assert isinstance(refusal, NotReady) and reader.newest("front") is None
    return refusal.reason
