"""How the cameras' pixels come to the device, and from when their images may be overwritten.

On a GPU the pixels go up as they lie: by the copy engine from page-locked memory, or not at all where the GPU
reads the host's memory in place; resizing is done there. All of it runs on a stream of its own, beside the
kernels of actions and text. Only when a copy is over is it known whether the images were still whole.

`ImageUpload` is where pixels lie for a captured graph to make patches of: a buffer for each camera, made when
its first frame comes and kept while frames stay as large. What reads them may be submitted before they are
there: it waits on the device. `end` is the one moment at which the host waits, for the copy alone. A buffer
is not written while the stage that reads it runs; `read` tells when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.stages.memory.host_memory import mapped_pointer
from vla_accel_ros.kernels.reference.image import View, Views
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.timeline import TIMELINE


def on_host(image: np.ndarray, device: torch.device) -> Tensor:
    """The image where it lies, uint8 [H, W, 3], contiguous: a tensor of the device that reads it in place, or
    of the host."""
    pointer = mapped_pointer(image) if image.flags.c_contiguous else 0
    if pointer:
        return torch.as_tensor(_Mapped(pointer, image), device=device)
    return torch.from_numpy(_writable(np.ascontiguousarray(image)))


class _Mapped:
    """Host memory by the GPU's address, in the form that torch takes without a copy."""

    def __init__(self, pointer: int, image: np.ndarray):
        self.image = image
        self.__cuda_array_interface__ = {
            "shape": image.shape,
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


class _Alias:
    """A read-only array that claims to be writeable."""

    def __init__(self, array: np.ndarray):
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _writable(array: np.ndarray) -> np.ndarray:
    """The same memory, for torch, which warns of read-only arrays each time though nobody writes here."""
    return array if array.flags.writeable else np.asarray(_Alias(array))


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
        current_stream(self._device).wait_event(self._arrived)

    def end(self, taken: Callable[[], None] = lambda: None) -> None:
        """Return when the images are needed no longer; taken: as of `take`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        TIMELINE.span("upload", "images", self._began_ns)
        taken()

    def read(self) -> None:
        """What was taken has been read once all is done that is in the current stream now."""
        if self._read is not None:
            self._read.record(current_stream(self._device))

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
            self._stream.wait_stream(current_stream(self._device))
