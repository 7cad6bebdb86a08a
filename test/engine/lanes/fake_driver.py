"""A GPU driver that divides multiprocessors and makes nothing; streams that only tell what waits for what."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from vla_accel_ros.engine.lanes import streams as lane_streams

CUDA = torch.device("cuda", 0)
OLD = "cuGreenCtxCreate"
"""A function that an older driver lacks."""
AT = 96
"""Where a CUdevResource has its number of multiprocessors."""


class Driver:
    """The functions of libcuda that partitions need. step: multiprocessors are given in multiples of it.

    missing: a function that it does not have; failing: one that returns an error. made: streams, by number:
    (multiprocessors, priority).
    """

    def __init__(self, there: int = 132, step: int = 8, missing: str = "", failing: str = "") -> None:
        self.there, self.step, self.missing, self.failing = there, step, missing, failing
        self.made: dict[int, tuple[int, int]] = {}
        self._held: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == self.missing:
            raise AttributeError(name)
        if name.startswith("cu") and name == self.failing:
            return lambda *given: 801
        return super().__getattribute__(name)

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return 0

    def cuDeviceGetDevResource(self, device: Any, resource: Any, kind: int) -> int:
        _set(resource, self.there)
        return 0

    def cuDevSmResourceSplitByCount(
        self, mine: Any, groups: Any, whole: Any, rest: Any, flags: int, least: int
    ) -> int:
        count = min(-(-least // self.step) * self.step, self.there)
        _set(mine, count)
        _set(rest, self.there - count)
        return 0

    def cuDevResourceGenerateDesc(self, described: Any, part: Any, count: int) -> int:
        return self._hold(described, int(ctypes.c_uint.from_buffer(part, AT).value))

    def cuGreenCtxCreate(self, context: Any, described: Any, device: Any, flags: int) -> int:
        return self._hold(context, self._held[described.value - 1])

    def cuGreenCtxStreamCreate(self, stream: Any, context: Any, flags: int, priority: int) -> int:
        sms = self._held[context.value - 1]
        self._hold(stream, sms)
        self.made[len(self._held)] = sms, priority
        return 0

    def _hold(self, pointer: Any, sms: int) -> int:
        self._held.append(sms)
        pointer._obj.value = len(self._held)
        return 0


class Stream:
    """A stream that notes whom it waits for, and when it is the current one."""

    said: ClassVar[list[tuple[str, object, object]]] = []
    current: ClassVar[list[object]] = []
    priorities = (0, -5)

    def __init__(self, number: object, priority: int = 0, **_: Any) -> None:
        self.number, self.priority = number, priority

    def wait_stream(self, other: Stream) -> None:
        self.said.append(("waits", self, other))

    def synchronize(self) -> None:
        self.said.append(("over", self, None))

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        return cls.priorities


@contextmanager
def _in(stream: Stream) -> Iterator[None]:
    Stream.current.append(stream)
    try:
        yield
    finally:
        assert Stream.current.pop() is stream


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> type[Stream]:
    """The streams of torch.cuda, and blocks on them, replaced."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    monkeypatch.setattr(lane_streams, "on_stream", _in)
    monkeypatch.setattr(Stream, "said", [])
    monkeypatch.setattr(Stream, "current", [])
    return Stream


def _set(resource: Any, count: int) -> None:
    ctypes.c_uint.from_buffer(resource, AT).value = count
