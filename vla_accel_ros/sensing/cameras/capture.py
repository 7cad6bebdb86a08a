"""Frames from anything that OpenCV can open: a V4L2 device, GStreamer pipeline, URL, video file or folder.

A live source blocks until its next frame and says how long ago that was taken. A recording is played at its
own rate or a given one, once or in a loop. A permanent fault (no such file, no picture in a folder) raises
ValueError at once. A fault that may pass (a device that is absent or unplugged) raises OSError: open the
source again. No ROS, no threads; clock and waiting are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

_PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
_READ = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
_RECENT_S = 1.0


@dataclass(frozen=True)
class Shot:
    """A frame as OpenCV has it, uint8 [height, width, 3], BGR, valid until the next; taken age_s ago."""

    bgr: np.ndarray
    age_s: float


@dataclass(frozen=True)
class Settings:
    """Settings of a source; 0 and empty leave its default. width, height [px], fps and fourcc (such as MJPG)
    apply to a device; fps also to a recording. loop: play a recording over and over."""

    width: int = 0
    height: int = 0
    fps: float = 0.0
    fourcc: str = ""
    loop: bool = True


class Capture(Protocol):
    """An open source."""

    def next(self) -> Shot | None:
        """Wait for the next frame; None when a recording has ended. Raises OSError if the source is gone, and
        ValueError for an unreadable frame, after which `next` may be called again."""
        ...

    def close(self) -> None:
        """Release the source. A second call does nothing."""
        ...


def open_source(
    source: str,
    settings: Settings,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Capture:
    """Open a source: a number or /dev/..., a GStreamer pipeline (contains '!'), a URL, a folder or a video
    file.

    wait: sleeps for the given seconds. clock: seconds of the monotonic clock that V4L2 stamps frames with.
    Raises ValueError or OSError, one sentence; see the module.
    """
    path = Path(source)
    if not source:
        raise ValueError(
            "source is empty: give a device, a GStreamer pipeline, a URL, a video file or a folder"
        )
    if len(settings.fourcc) not in (0, 4):
        raise ValueError(f"fourcc is {settings.fourcc!r}: give four letters such as MJPG, or nothing")
    if "!" in source:
        if not cv2.videoio_registry.hasBackend(cv2.CAP_GSTREAMER):
            raise ValueError(
                f"source is the pipeline {source!r}, and this OpenCV has no GStreamer: use the system's "
                "package python3-opencv"
            )
        return Live(source, cv2.CAP_GSTREAMER, settings, clock)
    if source.isdigit() or source.startswith("/dev/"):
        return Live(source, cv2.CAP_V4L2, settings, clock)
    if "://" in source:
        return Live(source, cv2.CAP_ANY, settings, clock)
    if path.is_dir():
        return Played(_folder(path), settings.fps or 30.0, settings.loop, wait, clock)
    if not path.is_file():
        raise ValueError(f"source is {source!r}, which is neither a file nor a folder here: fix the path")
    frames, fps = _video(path)
    return Played(frames, settings.fps or fps, settings.loop, wait, clock)


class Live(Capture):
    """A device, pipeline or URL that gives frames at its own time."""

    def __init__(self, source: str, backend: int, settings: Settings, clock: Callable[[], float]):
        self._source, self._clock, self._bgr = source, clock, None
        self._stamped = backend == cv2.CAP_V4L2
        self._capture = cv2.VideoCapture(_number(source) if self._stamped else source, backend)
        if not self._capture.isOpened():
            raise OSError(f"{source} cannot be opened: check that it exists, is not in use and is readable")
        for key, value in (
            (cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*settings.fourcc) if settings.fourcc else 0),
            (cv2.CAP_PROP_FRAME_WIDTH, settings.width),
            (cv2.CAP_PROP_FRAME_HEIGHT, settings.height),
            (cv2.CAP_PROP_FPS, settings.fps),
        ):
            if value:
                self._capture.set(key, value)

    def next(self) -> Shot:
        if not self._capture.grab():
            raise OSError(f"{self._source} gives no more frames: check that it is plugged in")
        age_s = self._age_s()
        read, self._bgr = self._capture.retrieve(self._bgr)
        if not read or self._bgr is None or self._bgr.ndim != 3:
            raise ValueError(f"{self._source} gave a frame that OpenCV cannot decode: try another fourcc")
        return Shot(self._bgr, age_s)

    def close(self) -> None:
        self._capture.release()

    def _age_s(self) -> float:
        """Time since the driver stamped the frame; 0 if the driver does not stamp with this clock."""
        if not self._stamped:
            return 0.0
        age_s = self._clock() - self._capture.get(cv2.CAP_PROP_POS_MSEC) * 1e-3
        return age_s if 0.0 <= age_s < _RECENT_S else 0.0


class Played(Capture):
    """A recording, played frame by frame in real time. begin: starts it from the beginning."""

    def __init__(
        self,
        begin: Callable[[], Iterator[np.ndarray]],
        fps: float,
        loop: bool,
        wait: Callable[[float], object],
        clock: Callable[[], float],
    ):
        self._begin, self._period_s, self._loop = begin, 1.0 / fps, loop
        self._wait, self._clock = wait, clock
        self._frames, self._due_s = begin(), clock()

    def next(self) -> Shot | None:
        bgr = next(self._frames, None)
        if bgr is None:
            if not self._loop:
                return None
            self._frames = self._begin()
            bgr = next(self._frames, None)
            if bgr is None:
                raise OSError("source has no frames any more: put it back")
        early_s = self._due_s - self._clock()
        if early_s > 0:
            self._wait(early_s)
        elif early_s < -self._period_s:
            self._due_s = self._clock()
        self._due_s += self._period_s
        return Shot(bgr, 0.0)

    def close(self) -> None:
        self._frames = iter(())
        self._loop = False


def _number(device: str) -> int | str:
    """OpenCV's number of a device; accepts other names such as /dev/v4l/by-id/..."""
    if device.isdigit():
        return int(device)
    number = Path(device).resolve().name.removeprefix("video")
    return int(number) if number.isdigit() else device


def _video(path: Path) -> tuple[Callable[[], Iterator[np.ndarray]], float]:
    """A function that starts the frames of a video file, and its rate. Raises ValueError if it is
    unreadable."""
    first = cv2.VideoCapture(str(path))
    readable, _ = first.read()
    fps = first.get(cv2.CAP_PROP_FPS)
    first.release()
    if not readable:
        raise ValueError(f"source is {str(path)!r}, in which OpenCV finds no frame: give a video file")

    def begin() -> Iterator[np.ndarray]:
        capture = cv2.VideoCapture(str(path))
        try:
            read, bgr = capture.read()
            while read:
                yield bgr
                read, bgr = capture.read(bgr)
        finally:
            capture.release()

    return begin, fps if 0.0 < fps < 1000.0 else 30.0


def _folder(path: Path) -> Callable[[], Iterator[np.ndarray]]:
    """A function that starts the pictures of a folder, sorted by name. Raises ValueError if there is none."""
    pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in _PICTURES)
    if not pictures:
        kinds = ", ".join(sorted(_PICTURES))
        raise ValueError(f"source is the folder {str(path)!r}, which has no picture ({kinds})")
    for picture in pictures:
        if not cv2.haveImageReader(str(picture)):
            raise ValueError(f"source has {str(picture)!r}, which is not a picture: remove it")

    def begin() -> Iterator[np.ndarray]:
        for picture in pictures:
            bgr = cv2.imread(str(picture), _READ)
            if bgr is not None:
                yield bgr

    return begin
