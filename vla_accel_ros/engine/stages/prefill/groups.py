"""Computes prefixes in groups of layers, so that other work may run between two of them.

Encode and prefill have one set of buffers, so only one frame is in progress. A call that needs the buffers
first computes the rest of that frame (`Groups.finish`). Policies avoid this, because it takes as long as
several groups, but no order of calls corrupts a prefix.

The first group does not wait for the pixels: meanwhile the lane has other work. Whoever waits for that group,
computes the next one or drops the frame returns only when the images are not needed any longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.prefill.encode import Encode
from vla_accel_ros.engine.stages.prefill.layered import Part, grouped
from vla_accel_ros.engine.stages.prefill.prefill import Prefill
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.models.micro_requests import ENCODE, PREFILL


class Chain(Protocol):
    """The part of engine.stages.stages.Stages that Groups uses."""

    pool: KVPool
    images: Tensor

    def encode(self, images: int) -> Encode: ...
    def prefill(self, views: int, prompt: int, batch: int = 1) -> Prefill: ...
    def prefixing(self, frame: Frame | None = None) -> AbstractContextManager[None]: ...
    def partition(self) -> Hashable: ...
    def record(self, stage: Stage, partition: Hashable) -> None: ...
    def replay(self, stage: Stage, partition: Hashable) -> None: ...


@dataclass(eq=False)
class Frame:
    """A prefix in progress. slot: where it is written; length, images: number of all tokens, and of image
    tokens.

    groups: not computed yet; partition: where they will be. dropped: nobody wants the frame. error: what
    ended it. upload_end: returns when the images are not needed any longer, and raises if they were
    overwritten; None = that was done.
    """

    slot: int
    length: int
    images: int
    groups: deque[list[Part]]
    partition: Hashable
    dropped: bool = False
    error: BaseException | None = None
    upload_end: Callable[[], None] | None = None

    @property
    def stage(self) -> str:
        """The stage in which the next group begins; empty once all are computed."""
        if not self.groups:
            return ""
        return ENCODE if isinstance(self.groups[0][0][0], Encode) else PREFILL

    def end_upload(self) -> None:
        """Return when the images are not needed any longer. Raises, once, what `taken` raises."""
        end, self.upload_end = self.upload_end, None
        if end is not None:
            end()

    def drop(self) -> None:
        """Compute nothing more of the frame; returns when its images are not needed any longer."""
        self.dropped = True
        with suppress(Exception):  # nobody wants the frame, torn or not
            self.end_upload()


class Groups:
    """Computes frames in `count` groups."""

    def __init__(self, stages: Chain, count: int) -> None:
        self.count, self._stages = count, stages
        self._frame: Frame | None = None
        self._made: dict[tuple[Encode, Prefill], list[list[Part]]] = {}
        self._recorded: set[tuple[Encode, Prefill, Hashable]] = set()
        self._device = stages.pool.k.device

    @torch.inference_mode()
    def begin(
        self,
        images: Sequence[np.ndarray] | np.ndarray,
        prompt: Callable[[], Tensor],
        slot: int,
        taken: Callable[[], None] = lambda: None,
        states: Sequence[Tensor] = (),
    ) -> Frame:
        """Compute the first group of a prefix; arguments as in Stages.observe, but for one frame. The images
        are needed until `Frame.end_upload` or another call has returned, which calls `taken`."""
        stages = self._stages
        with stages.prefixing():
            encode = stages.encode(len(images))
            encode.upload.begin(list(images))
            try:
                words = prompt()
                prefill = stages.prefill(len(images), len(words))
                prefill.set([words], [slot], states)
                groups, image_tokens = self._groups(encode, prefill), len(encode.tokens)
                length = image_tokens + len(words) + prefill.beside
                frame = Frame(slot, length, length - len(words), groups, stages.partition())
                if (encode, prefill, frame.partition) not in self._recorded:
                    self._record(frame)
                    self._recorded.add((encode, prefill, frame.partition))
                self._next(frame)
                frame.upload_end = partial(encode.upload.end, taken)
            except BaseException:  # the images may be overwritten after this
                encode.upload.end()
                raise
            finally:
                encode.upload.read()
            self._frame = frame if frame.groups else None
        return frame

    @torch.inference_mode()
    def advance(self, frame: Frame) -> None:
        """Compute the frame's next group, if another call has not done so. Raises the error that ended the
        frame, and what `taken` raises."""
        frame.end_upload()
        with self._stages.prefixing(frame):
            if frame.groups:
                self._next(frame)
        if isinstance(frame.error, Exception):
            raise frame.error
        if frame.error is not None:
            raise RuntimeError(f"a frame was broken off between two of its groups: {frame.error!r}")

    def launched(self, frame: Frame) -> Callable[[], None]:
        """Returns a function that waits for the work launched so far, even if more is launched behind it, and
        then is `Frame.end_upload`."""
        if self._device.type != "cuda":
            return frame.end_upload
        event = current_stream(self._device).record_event()

        def wait() -> None:
            event.synchronize()
            frame.end_upload()

        return wait

    def finish(self, wanted: Frame | None = None) -> None:
        """Compute the rest of the frame in progress, unless it is the wanted one. The caller holds the
        buffers."""
        frame = self._frame
        while frame is not None and frame is not wanted and frame is self._frame:
            if frame.dropped:
                self._frame = None
                break
            with suppress(Exception):  # the frame's owner gets the error, not this caller
                self._next(frame)

    def build(self, images: np.ndarray, prompt: Tensor, slot: int, states: Sequence[Tensor] = ()) -> None:
        """Record the graphs of all groups of such a frame."""
        frame = self.begin(images, lambda: prompt, slot, states=states)
        while frame.groups:
            self.advance(frame)

    def _groups(self, encode: Encode, prefill: Prefill) -> deque[list[Part]]:
        if (encode, prefill) not in self._made:
            self._made[encode, prefill] = grouped((encode, prefill), self.count)
        return deque(self._made[encode, prefill])

    def _record(self, frame: Frame) -> None:
        """Record the graphs of all groups before the first is computed: see engine.stages.prefill.layered."""
        for group in frame.groups:
            for stage, layers in group:
                with stage.only(layers):
                    self._stages.record(stage, frame.partition)

    def _next(self, frame: Frame) -> None:
        try:
            for stage, layers in frame.groups.popleft():
                with stage.only(layers):
                    self._stages.replay(stage, frame.partition)
                if isinstance(stage, Encode) and layers[1] == len(stage.costs):
                    self._stages.images[frame.slot, : len(stage.tokens)].copy_(stage.tokens)
        except BaseException as error:
            frame.error = error
            frame.groups.clear()
            raise
        finally:
            if not frame.groups and frame is self._frame:
                self._frame = None
