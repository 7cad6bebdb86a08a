"""Frames as a video that can be read frame by frame: a key frame at every other one, as LeRobot encodes."""

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
    """One mp4 of uint8 [H, W, 3] RGB frames, as AV1 or, without its encoder, H.264.

    Raises ValueError for a size that no such video has.
    """

    def __init__(self, path: Path, fps: int, height: int, width: int) -> None:
        if height % 2 or width % 2 or min(height, width) < 16:
            raise ValueError(f"images are {height} x {width}: a video needs even sizes of at least 16")
        module = needed("av")
        os.environ.setdefault("SVT_LOG", "1")  # its errors; otherwise it tells its life for every film
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
        """The next frame."""
        if image.shape[:2] != self._size:
            raise ValueError(f"images change from {self._size} to {image.shape[:2]}: export them apart")
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        self._file.mux(self._stream.encode(frame))

    def close(self) -> dict[str, Any]:
        """End the video; returns what LeRobot says of one."""
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
    """After the block the caller's thread, and all that begin in it, are scheduled as the caller was before.

    SVT-AV1 makes its threads and its caller real-time tasks of the highest priority where it may, as root in
    a container: above the control loops of a robot beside it, and inherited by every process begun later.
    Does nothing where threads are not listed in /proc.
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
    """A package that only export needs, imported when it runs. Raises RuntimeError where it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(f"datasets need pyarrow and av ({error}): pip install pyarrow av") from error
