"""Capturing a stage: what it refuses, what it leaves running, and what is said of it."""

from __future__ import annotations

import gc
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from vla_accel_ros.engine.stages import stage as stages
from vla_accel_ros.engine.stages.stage import Stage, capture_ahead, no_collection
from vla_accel_ros.kernels.early import reads_early

CPU = torch.device("cpu")


@reads_early("positions")
def turn(x: Tensor, positions: Tensor, *, pdl: bool = False) -> None:
    """Stands for a launch that waits after it has read its positions."""


@reads_early("positions", waits=False)
def turn_at_once(x: Tensor, positions: Tensor, *, pdl: bool = False) -> None:
    """Stands for one that lets the next begin before it waits."""


class Turned(Stage):
    """Turns x by positions that are inputs, or computed from `lengths` by the launch right before."""

    def __init__(self, launch: str, early: bool = True) -> None:
        super().__init__(CPU)
        self.x, self.lengths = torch.zeros(4), torch.ones(4, dtype=torch.int32)
        self.positions, self._launch, self._early = torch.zeros(4, dtype=torch.int32), launch, early

    def body(self) -> None:
        match self._launch:
            case "inputs":
                turn(self.x, self.positions, pdl=self._early)
            case "computed":
                turn(self.x, self.lengths - 1, pdl=self._early)
            case "in place":
                torch.sub(self.lengths, 1, out=self.positions)
                turn(self.x, self.positions[2:], pdl=self._early)
            case "long before":
                self.positions.copy_(self.lengths)
                turn(self.x, self.lengths, pdl=self._early)
                turn(self.x, self.positions, pdl=self._early)
            case "before launches that wait late":
                self.positions.copy_(self.lengths)
                turn_at_once(self.x, self.lengths, pdl=self._early)
                turn(self.x, self.positions, pdl=self._early)


@pytest.mark.parametrize("launch", ["inputs", "long before"])
def test_early_reads_are_allowed_of_what_no_launch_under_way_writes(launch: str) -> None:
    Turned(launch).check()


@pytest.mark.parametrize("launch", ["computed", "in place", "before launches that wait late"])
def test_early_reads_are_refused_by_name_of_what_may_still_be_written(launch: str) -> None:
    with pytest.raises(RuntimeError, match=r"Turned: turn reads positions before aten\."):
        Turned(launch).check()
    Turned(launch, early=False).check()


def test_no_collection_lasts_until_the_last_of_overlapping_blocks_ends() -> None:
    assert gc.isenabled()
    with ExitStack() as first:
        second = ExitStack()
        first.enter_context(no_collection())
        second.enter_context(no_collection())
        first.close()
        assert not gc.isenabled()
        second.close()
        assert gc.isenabled()


class Counted(Stage):
    """Adds to a number."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.x = torch.zeros(1, device=device)

    def body(self) -> None:
        self.x.add_(1.0)


class Graph:
    """Stands for a CUDA graph: whether its recording goes on."""

    recording = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local" and not gc.isenabled()
        Graph.recording = True

    def capture_end(self) -> None:
        Graph.recording = False


class Recorded(Turned):
    """Notes of each call of its body whether it is recorded."""

    def __init__(self, launch: str = "inputs") -> None:
        super().__init__(launch)
        self.device, self.calls = torch.device("cuda"), list[bool]()

    def body(self) -> None:
        self.calls.append(Graph.recording)
        super().body()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the device's streams and graphs, which must not be stopped."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in (("Stream", lambda device: stream), ("stream", nullcontext), ("CUDAGraph", Graph)):
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("the device is stopped"))
    monkeypatch.setattr(stages, "InOrder", lambda device: None)
    monkeypatch.setattr(stages, "current_stream", lambda device: stream)
    monkeypatch.setattr(stages._Captures, "configured", False)
    stages._warn_once.cache_clear()


@pytest.mark.usefixtures("recorder")
def test_a_capture_records_after_two_warm_ups_and_is_told_once_by_name_if_it_is_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        with capture_ahead():
            ahead = Recorded()
            ahead.capture()
        assert ahead.captured and ahead.calls == [False, False, True] and not caplog.messages
    for _ in range(2):
        Recorded().capture()
    assert len(caplog.messages) == 1 and "Recorded" in caplog.messages[0]
    assert gc.isenabled()


@pytest.mark.usefixtures("recorder")
def test_a_stage_that_reads_early_what_it_writes_is_not_captured() -> None:
    stage = Recorded("computed")
    with pytest.raises(RuntimeError, match="Recorded: turn reads positions"):
        stage.capture()
    assert not stage.captured and stage.calls == [False]


@pytest.mark.gpu
def test_a_capture_neither_waits_for_other_streams_nor_stops_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stages._Captures, "configured", False)
    stages._warn_once.cache_clear()
    device = torch.device("cuda")
    Counted(device).capture()  # loads what capturing needs
    with capture_ahead():
        Counted(device).capture()
    assert not caplog.records
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(4_000_000_000)
    counted = Counted(device)
    for variant in (None, None, 1):
        counted.variant = variant
        counted.capture()
        Counted(device).capture()
    counted.run()
    assert counted.x.item() == 5, "two warm-ups of each variant, and a replay"
    assert not other.query(), "the other stream's kernel takes two seconds"
    assert [record.args for record in caplog.records] == [("Counted",), ("Counted 1",)]
