"""Encodes frames as an mp4 in which every frame is quick to decode: every other frame is a key frame, as
LeRobot encodes."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_THREADS = Path("/proc/self/task")
_CODECS: dict[str, dict[str, str]] = {
    "libsvtav1": {"g": "2", "crf": "30", "preset": "8"},
    "libx264": {"g": "2", "crf": "20", "preset": "fast"},
}


class Film:
    """Writes one mp4 from uint8 [H, W, 3] RGB frames: AV1, or H.264 where PyAV has no AV1 encoder.

    Raises ValueError if a side is odd or shorter than 16 pixels.
    """

    def __init__(self, path: Path, fps: int, height: int, width: int) -> None:
        if height % 2 or width % 2 or min(height, width) < 16:
            raise ValueError(
                f"images are {height} x {width}: record even sizes of at least 16, which a video needs"
            )
        module = needed("av")
        os.environ.setdefault("SVT_LOG", "1")  # errors only, not its settings for every film
        logging.getLogger("libav").setLevel(logging.ERROR)
        codec = next(name for name in _CODECS if name in module.codecs_available)
        self._av: ModuleType = module
        self._file: Any = module.open(str(path), "w")
        self._stream: Any = self._file.add_stream(codec, rate=fps, options=dict(_CODECS[codec]))
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        with as_before():
            self._file.start_encoding()
        self._fps, self._size = fps, (height, width)

    def add(self, image: np.ndarray) -> None:
        """Encode the next frame. Raises ValueError if its size differs from the film's."""
        if image.shape[:2] != self._size:
            raise ValueError(f"images change from {self._size} to {image.shape[:2]}: export them apart")
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        self._file.mux(self._stream.encode(frame))

    def close(self) -> dict[str, Any]:
        """Finish the file; return the video entries that LeRobot stores in a feature's `info`."""
        self._file.mux(self._stream.encode())
        name = self._stream.codec.canonical_name
        self._file.close()
        return {
            "video.height": self._size[0],
            "video.width": self._size[1],
            "video.codec": name,
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": self._fps,
            "video.channels": 3,
            "has_audio": False,
        }


@contextmanager
def as_before() -> Iterator[None]:
    """On leaving the block, restore the caller's scheduling policy on its thread and on every thread begun in
    the block.

    Where it has the right to, as root in a container, SVT-AV1 makes its own threads and the calling thread
    real-time tasks of the highest priority. They would then run before the control loops of a robot on the
    same machine, and every process begun later would inherit that priority. Does nothing without
    /proc/self/task.
    """
    if not _THREADS.is_dir():
        yield
        return
    threads, policy, parameters = set(os.listdir(_THREADS)), os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (0, *map(int, set(os.listdir(_THREADS)) - threads)):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, parameters)


def needed(name: str) -> Any:
    """Import and return a package that only export needs. Raises RuntimeError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(f"datasets need pyarrow and av ({error}): pip install pyarrow av") from error
