"""Small inputs that ask for much, and what becomes of the memory of whoever reads them.

tracemalloc does not see what C libraries allocate, so the reader is a child process, and its memory what the
kernel says it had at most.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

MOST_MB = 200.0


@dataclass(frozen=True)
class Refused:
    """What a reader said, the most memory it took beyond what it had, and its time, which no test asserts."""

    sentence: str
    peak_mb: float
    seconds: float


def refused(read: Callable[[], object], kind: type[Exception] = ValueError) -> Refused:
    """Have a child process read it. Raises AssertionError unless it raises `kind`, within MOST_MB."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            os.write(theirs, pickle.dumps(_read(read, kind)))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told, "the reader ended by a signal"
    found: Refused = pickle.loads(told)
    assert found.peak_mb < MOST_MB, found
    assert "\n" not in found.sentence and len(found.sentence) < 2000, found
    return found


def _read(read: Callable[[], object], kind: type[Exception]) -> Refused:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before_mb, began_s = _peak_mb(), time.perf_counter()
    try:
        read()
        sentence = ""
    except kind as error:
        sentence = str(error)
    except BaseException as error:  # the test says which it was
        sentence = f"{type(error).__name__}\n{error}"
    return Refused(sentence[:4000], _peak_mb() - before_mb, time.perf_counter() - began_s)


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
    at = file.index(b"\xff\xc0") + 5
    return file[:at] + struct.pack(">HH", height, width) + file[at + 4 :]


def black_png(height: int, width: int) -> bytes:
    """A whole PNG of nothing but black."""
    good, coded = cv2.imencode(
        ".png", np.zeros((height, width, 3), np.uint8), [cv2.IMWRITE_PNG_COMPRESSION, 9]
    )
    assert good
    return coded.tobytes()
