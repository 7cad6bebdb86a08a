"""A stage: a function of fixed buffers, captured once and replayed.

On a GPU the body is recorded into a CUDA graph, so that a call is one launch without Python, allocation or
host synchronisation in between; on a CPU a call runs the body. Inputs are copied into the buffers before a
call and outputs out of them after it, in the current stream's order. A body may run any number of times
before it is captured: everything it writes follows from its inputs.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.recent import Recent
from vla_accel_ros.kernels.early import EarlyReads

_warn_once = cache(logging.getLogger(__name__).warning)


class Memory:
    """Buffers by name, each as large as its first user asks; all users of a name share it.

    For stages of one chain, which never run at the same time, so that they need the buffers of one stage.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int, most: int) -> Tensor:
        """The first values of a buffer of `most` values, in a shape."""
        if name not in self._held:
            self._held[name] = torch.zeros(most, device=self._device, dtype=self._dtype)
        return self._held[name][: math.prod(shape)].view(shape)


def put(buffer: Tensor, values: Tensor) -> None:
    """Copy values, from the host or the device, into a buffer in the current stream's order, without
    blocking.

    They are pinned first: a copy from pageable memory to a GPU would wait for all work in the stream.
    """
    if buffer.is_cuda and not values.is_cuda:
        values = values.pin_memory()
    buffer.copy_(values, non_blocking=True)


class InOrder:
    """Orders blocks that share buffers of a device, whatever streams they are in. Work in one stream is
    ordered by itself, so events are recorded only once there is a second stream."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._over = device, torch.cuda.Event() if device.type == "cuda" else None
        self._stream: torch.cuda.Stream | None = None  # of the last block
        self._several = False  # whether there were several streams

    @contextmanager
    def one(self) -> Iterator[None]:
        """A block whose work is ordered after that of the block before. Use it from one thread at a time."""
        if self._over is None:
            yield
            return
        stream = current_stream(self._device)
        if stream != self._stream and self._stream is not None:
            if not self._several:
                self._several = True
                self._over.record(self._stream)
            stream.wait_event(self._over)
        self._stream = stream
        try:
            yield
        finally:
            if self._several:
                self._over.record(stream)


class Stage(ABC):
    """A function `body` of fixed buffers; `run` computes it, by replay once it is captured.

    variant: which of several bodies over the same buffers is computed; partition: on which processors. Each
    pair has a graph of its own. The caller sets them and the inputs, and holds the lock that the stage's
    callers share.
    most: number of graphs kept, of the pairs used last; None = all. memory: a torch.cuda.graph_pool_handle
    shared by the graphs of stages that never run at the same time; None = each graph has its own.
    """

    variant: Hashable = None
    partition: Hashable = None

    def __init__(self, device: torch.device, most: int | None = None, memory: Any = None) -> None:
        self.device, self._shared = device, memory
        self._graphs = Recent[Hashable, torch.cuda.CUDAGraph](most)
        self.recording: torch.cuda.Stream | None = None  # of the last recording
        self._calls = InOrder(device)

    @abstractmethod
    def body(self) -> None:
        """Compute the outputs from the inputs, without control flow that depends on a value on the device."""

    @property
    def captured(self) -> bool:
        """Whether a call replays a graph."""
        return (self.variant, self.partition) in self._graphs

    def call(self) -> AbstractContextManager[None]:
        """Context of one call, from its inputs to its outputs. Calls share the stage's buffers, so each is
        ordered after the one before."""
        return self._calls.one()

    @property
    def name(self) -> str:
        """Its class and variant."""
        return type(self).__name__ if self.variant is None else f"{type(self).__name__} {self.variant!r}"

    def check(self) -> None:
        """Run the body once. Raises RuntimeError, with names of stage, kernel and tensor, if a launch reads
        early what may still be written (kernels.early)."""
        with EarlyReads(self.name):
            self.body()

    @torch.inference_mode()
    def capture(self, stream: torch.cuda.Stream | None = None) -> None:
        """Record the variant's graph; does nothing on a CPU or if it is captured. The inputs must be valid.
        Other streams go on. Raises RuntimeError as `check` does.

        stream: to record on; the graph keeps its partition of processors and its priority; None = the stream
            of the graph before, or a new one. cuBLAS keeps a workspace for each stream that is recorded on
            (32 MiB on an H200), which the graphs of that stream share: give stages that never run at the same
            time the same stream.
        """
        if self.device.type != "cuda" or self.captured:
            return
        current = current_stream(self.device)
        self.recording = side = stream or self.recording or torch.cuda.Stream(self.device)
        side.wait_stream(current)
        if _Captures.configured and not _Captures.ahead.get():
            _warn_once("%s is captured while it is waited for: tell Engine.prepare.", self.name)
        # Warm up: compiling kernels and allocating library workspaces cannot be captured.
        with torch.cuda.stream(side):
            self.check()
            self.body()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile. Memory that the garbage collector frees would end the
        # capture, and torch.cuda.graph would first wait for all streams.
        with no_collection(), torch.cuda.stream(side):
            graph.capture_begin(self._shared, capture_error_mode="thread_local")
            try:
                self.body()
            finally:
                graph.capture_end()
        self._graphs.put((self.variant, self.partition), graph)

    def run(self) -> None:
        """Replay the graph, or run the body if it is not captured."""
        graph = self._graphs.get((self.variant, self.partition))
        if graph is not None:
            graph.replay()
            return
        with torch.inference_mode():
            self.body()


class _Captures:
    """Captures under way, and what is to be told of them. collects: whether garbage was collected before the
    first; configured: whether a block of `capture_ahead` has ended."""

    lock, count, collects = threading.Lock(), 0, False
    ahead, configured = ContextVar("ahead", default=False), False


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection, which frees device memory, while any thread is in such a block."""
    with _Captures.lock:
        if not _Captures.count:
            _Captures.collects = gc.isenabled()
            gc.disable()
        _Captures.count += 1
    try:
        yield
    finally:
        with _Captures.lock:
            _Captures.count -= 1
            if not _Captures.count and _Captures.collects:
                gc.enable()


@contextmanager
def capture_ahead() -> Iterator[None]:
    """A block in which stages are captured before they are needed; later ones are warned about. At its end
    the device gets back the memory that only capturing needed."""
    token = _Captures.ahead.set(True)
    try:
        yield
    finally:
        _Captures.ahead.reset(token)
        _Captures.configured = True
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
