"""The cost of a frame through the shared-memory ring, and its age on the other side.

    python bench/ring.py [--seconds S]

"costs" are single calls in one process [us]. "cameras" are two processes: one writes two cameras at 30 Hz and
sends each frame's handle through a pipe, the other takes the frame by its handle and verifies it; the age
[ms] is from before the write to after the check, CPU in percent of a core. "load" is how many cores were busy
before. ROS is not included: a handle message costs extra.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from run import Bench, Given, Row, main
from vla_accel_ros.sensing.cameras.frames import Lease
from vla_accel_ros.sensing.cameras.ring import RingWriter
from vla_accel_ros.sensing.cameras.ring_reader import RingReader

SIZES = ((640, 480), (1280, 720))
CAMERAS = ("front", "wrist")
RATE_HZ = 30
CALLS = 3000


def quantiles(samples: list[float]) -> dict[str, float]:
    """p50 and p99, rounded to the measurable digits."""
    return {f"p{q}": round(float(np.percentile(samples, q)), 2) for q in (50, 99)}


def timed_us(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Time of a call; `before` runs ahead of each and is not timed."""
    samples = []
    for _ in range(CALLS):
        before()
        begin = time.perf_counter()
        call()
        samples.append((time.perf_counter() - begin) * 1e6)
    return quantiles(samples)


def costs(width: int, height: int) -> dict[str, dict[str, float]]:
    """Times of single calls; each read is of a new frame."""
    name = f"bench-{os.getpid()}"
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    copy = np.empty_like(image)
    with RingWriter(name, height, width) as writer:
        in_place = RingReader({"front": name}, copy=False, page_lock=False)
        copying = RingReader({"front": name}, copy=True, page_lock=False)

        def fill() -> None:
            with writer.slot(0):
                pass

        def newest(reader: RingReader) -> None:
            lease = reader.newest("front")
            assert lease is not None and lease.intact()
            lease.release()

        def take() -> None:
            assert writer.handle is not None
            lease = in_place.take(writer.handle)
            assert isinstance(lease, Lease) and lease.intact()

        def write() -> None:
            writer.write(image, 0)

        return {
            "memcpy": timed_us(lambda: np.copyto(copy, image)),
            "write": timed_us(write),
            "write without pixels": timed_us(fill),
            "take in place": timed_us(take, write),
            "newest in place": timed_us(lambda: newest(in_place), write),
            "newest copied": timed_us(lambda: newest(copying), write),
        }


def film(connection: Connection, names: list[str], width: int, height: int, seconds: float) -> None:
    """The cameras' process: runs two cameras at their rate; prints its CPU share at the end."""
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    writers = [RingWriter(name, height, width) for name in names]
    connection.send("ready")
    connection.recv()
    begin, used = time.monotonic(), time.process_time()
    for frame in range(int(seconds * RATE_HZ)):
        for writer in writers:
            connection.send(writer.write(image, time.monotonic_ns()))
        time.sleep(max(0.0, begin + (frame + 1) / RATE_HZ - time.monotonic()))
    connection.send((time.process_time() - used) / (time.monotonic() - begin))
    connection.recv()
    for writer in writers:
        writer.close()


def cameras(width: int, height: int, seconds: float, copy: bool) -> dict[str, object]:
    """Both processes for a time."""
    names = {camera: f"bench-{os.getpid()}-{camera}" for camera in CAMERAS}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=film, args=(theirs, list(names.values()), width, height, seconds))
    process.start()
    assert ours.recv() == "ready"
    reader, ages = RingReader(names, copy, page_lock=False), []
    ours.send("go")
    begin, used = time.monotonic(), time.process_time()
    while not isinstance(handle := ours.recv(), float):
        lease = reader.take(handle)
        if isinstance(lease, Lease):
            with lease:
                if lease.intact():
                    ages.append((time.monotonic_ns() - handle.stamp_ns) * 1e-6)
    reading = (time.process_time() - used) / (time.monotonic() - begin)
    ours.send("end")
    process.join()
    return {
        "frames": "copied" if copy else "in place",
        "hz": round(len(ages) / seconds / len(CAMERAS), 2),
        "age_ms": quantiles(ages),
        "reader_cpu": round(100 * reading, 2),
        "writer_cpu": round(100 * handle, 2),
    }


def measure(given: Given) -> Iterator[Row]:
    """Each size."""
    for width, height in SIZES:
        yield {
            "width": width,
            "height": height,
            "costs_us": costs(width, height),
            "cameras": [cameras(width, height, given.seconds, copy) for copy in (False, True)],
        }


def options(add: Callable[..., Any]) -> None:
    """For how long."""
    add("--seconds", type=float, default=10.0)


BENCH = Bench("ring", measure, options, {"rate_hz": RATE_HZ}, rows="rows", smoke="--seconds 0.5")

if __name__ == "__main__":
    sys.exit(main(BENCH))
