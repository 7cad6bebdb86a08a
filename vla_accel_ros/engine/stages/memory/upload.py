"""Where the cameras' pixels of one stage come down, as they are, for a captured graph to make patches of.

Each camera has a buffer of its own on the device, made when its first frame comes and kept while frames stay
as large. Frames are copied into them on a stream of their own, beside the kernels of actions and text.
What reads them may be submitted before they are there: it waits on the device. `end` is the one moment at
which the host waits, for the copy alone: only then can it be said whether the frames were still whole. A
buffer is not written while the stage that reads it runs; `read` tells when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vla_accel_ros.engine.frames.preprocess import on_host
from vla_accel_ros.kernels.reference.image import View, Views
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.timeline import TIMELINE


class ImageUpload:
    """Buffers for `count` images of any sizes, and what a kernel needs to make squares of them by a rule.

    views: for kernels.reference.image.patches. Not for several threads at once: whoever takes holds the
    stage's lock until the stage is in the stream and `read` was called.
    """

    def __init__(self, rule: PixelRule, size: int, count: int, device: torch.device) -> None:
        self.views = Views(rule, size, count, device)
        self._device, self._held, self._began_ns = device, list[View](), 0
        self._stream, self._read, self._arrived = None, None, None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._read, self._arrived = torch.cuda.Event(), torch.cuda.Event()

    def take(self, images: Sequence[np.ndarray], taken: Callable[[], None] = lambda: None) -> None:
        """Copy images uint8 [H, W, 3] here; they are needed no longer when it returns.

        taken: called then, with what raises if the images had been overwritten.
        """
        self.begin(images)
        self.end(taken)

    def begin(self, images: Sequence[np.ndarray]) -> None:
        """Copy images here without waiting; what the current stream does next is done when they are here."""
        self._began_ns = TIMELINE.now_ns()
        self._make_room(images)
        if self._stream is None or self._read is None or self._arrived is None:
            self._copy(images)
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._read)
            self._copy(images)
            self._arrived.record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._arrived)

    def end(self, taken: Callable[[], None] = lambda: None) -> None:
        """Return when the images are needed no longer; taken: as of `take`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        TIMELINE.span("upload", "images", self._began_ns)
        taken()

    def read(self) -> None:
        """What was taken has been read once all is done that is in the current stream now."""
        if self._read is not None:
            self._read.record(torch.cuda.current_stream(self._device))

    def _copy(self, images: Sequence[np.ndarray]) -> None:
        for image, view in zip(images, self._held, strict=True):
            view.pixels.copy_(on_host(image, self._device), non_blocking=True)

    def _make_room(self, images: Sequence[np.ndarray]) -> None:
        if [image.shape for image in images] == [view.pixels.shape for view in self._held]:
            return
        buffers = [torch.empty(image.shape, dtype=torch.uint8, device=self._device) for image in images]
        self._held = [self.views.view(buffer) for buffer in buffers]
        self.views.point(self._held)
        if self._stream is not None:  # that memory may have been another's until now
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
