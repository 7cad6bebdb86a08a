"""Copies the cameras' pixels to the device, and tells when their images may be overwritten.

On a GPU the pixels are copied unchanged, by the copy engine from page-locked memory; the GPU resizes them. It
does not do so from host memory in place, because it reads each pixel several times. All of this runs on its
own stream, beside the kernels of actions and text. Only after a copy can it be checked whether the images
were still intact.

`ImageUpload` holds the pixels for a captured graph: a buffer for each camera, made at its first frame and
kept while frames have the same size and turn. Work that reads them may be submitted before they arrive: it
waits on the device. The host waits only in `end`, and only for the copy. A buffer is not written while the
stage that reads it runs; `read` marks when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream, on_stream
from vla_accel_ros.engine.stages.memory.host_memory import mapped_pointer
from vla_accel_ros.kernels.reference.image import Place, View, Views
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.timeline import TIMELINE


def on_host(image: np.ndarray, device: torch.device) -> Tensor:
    """The image or memory in place, uint8, contiguous: a device tensor over mapped memory, or a host
    tensor. Raises TypeError for another type, before it reads."""
    if image.dtype != np.uint8:
        raise TypeError(f"an image is of {image.dtype}, not uint8")
    pointer = mapped_pointer(image) if image.flags.c_contiguous else 0
    if pointer:
        return torch.as_tensor(_Mapped(pointer, image), device=device)
    return torch.from_numpy(_writable(np.ascontiguousarray(image)))


def in_memory(image: np.ndarray) -> tuple[np.ndarray, Place]:
    """The memory of an image uint8 [H, W, 3] as bytes [N], and where the image lies in it: of one that is
    cropped or turned, too, without a copy."""
    place = Place.of(image)
    if place is None:
        image = np.ascontiguousarray(image)
        place = Place(image.shape[0], image.shape[1], 3 * image.shape[1], 3)
    lowest = image[-1 if place.row < 0 else 0, -1 if place.column < 0 else 0]
    return np.lib.stride_tricks.as_strided(lowest, (place.size,), (1,)), place


class _Mapped:
    """Mapped host memory at its GPU address, in the form that torch takes without a copy."""

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
    """The same memory as a writeable array, because torch warns about each read-only one; nobody writes to
    it."""
    return array if array.flags.writeable else np.asarray(_Alias(array))


class ImageUpload:
    """Buffers for `count` images of any sizes, and what a kernel needs to make square patches from them by a
    rule.

    views: for kernels.reference.image.patches. Not safe for several threads at once: the caller of `take` or
    `begin` holds the stage's lock until the stage is in the stream and `read` was called.
    """

    def __init__(self, rule: PixelRule, size: int, count: int, device: torch.device) -> None:
        self.views = Views(rule, size, count, device)
        self._device, self._held, self._began_ns = device, list[View](), 0
        self._places: list[Place] = []  # of the images that `_held` is for
        self._stream, self._read, self._arrived = None, None, None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._read, self._arrived = torch.cuda.Event(), torch.cuda.Event()

    def take(self, images: Sequence[np.ndarray], taken: Callable[[], None] = lambda: None) -> None:
        """Copy images uint8 [H, W, 3]; the caller may overwrite them afterwards.

        taken: called at the end; it raises if the images were overwritten.
        """
        self.begin(images)
        self.end(taken)

    def begin(self, images: Sequence[np.ndarray]) -> None:
        """Copy images without blocking; later work in the current stream waits for them.

        After an error the images are not needed any longer, and `end` need not be called.
        """
        self._began_ns = TIMELINE.now_ns()
        memories, places = zip(*map(in_memory, images), strict=True)
        self._make_room(list(places))
        if self._stream is None or self._read is None or self._arrived is None:
            self._copy(memories)
            return
        with on_stream(self._stream):
            self._stream.wait_event(self._read)
            try:
                self._copy(memories)
            except BaseException:
                self._stream.synchronize()
                raise
            self._arrived.record(self._stream)
        current_stream(self._device).wait_event(self._arrived)

    def end(self, taken: Callable[[], None] = lambda: None) -> None:
        """Return when the images are not needed any longer; taken: see `take`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        TIMELINE.span("upload", "images", self._began_ns)
        taken()

    def read(self) -> None:
        """Mark the buffers as read once all work now in the current stream is done."""
        if self._read is not None:
            self._read.record(current_stream(self._device))

    def _copy(self, memories: Sequence[np.ndarray]) -> None:
        for memory, view in zip(memories, self._held, strict=True):
            view.memory.copy_(on_host(memory, self._device), non_blocking=True)

    def _make_room(self, places: list[Place]) -> None:
        if places == self._places:
            return
        buffers = [torch.empty(place.size, dtype=torch.uint8, device=self._device) for place in places]
        views = [self.views.view(buffer, place) for buffer, place in zip(buffers, places, strict=True)]
        self.views.point(views)
        self._held, self._places = views, places
        if self._stream is not None:  # the allocator may reuse memory that the current stream still uses
            self._stream.wait_stream(current_stream(self._device))
