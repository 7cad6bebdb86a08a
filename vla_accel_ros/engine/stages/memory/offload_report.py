"""What streaming a tower's weights costs and saves, measured when an engine is prepared.

Nova's condition (section III-E): for a tower of S bytes that takes T seconds, copies at B bytes a second are
hidden if B >= S / T; otherwise at most the share B * T / S can be hidden. The tower is timed with its copies
and without, so the report gives the measured cost whatever the condition says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

import torch

from vla_accel_ros.engine.stages.memory.offload import LayerRing
from vla_accel_ros.engine.stages.stage import Stage

RUNS, WARM_UPS = 20, 3
HIDDEN = 1.01
"""Copies count as hidden if the tower takes at most this many times as long as without them."""


@dataclass(frozen=True)
class OffloadReport:
    """Report on all towers of a stage. layers, streamed: numbers of layers; total_bytes (S), streamed_bytes:
    of weights; saved_bytes: of device memory; bandwidth (B): of copies [bytes/s]; tower_s (T), offloaded_s:
    one run without copies and with them. Bandwidth and times are 0 if the model is in host memory."""

    layers: int
    streamed: int
    total_bytes: int
    streamed_bytes: int
    saved_bytes: int
    bandwidth: float = 0.0
    tower_s: float = 0.0
    offloaded_s: float = 0.0

    @property
    def needed_bandwidth(self) -> float:
        """S / T: the bandwidth [bytes/s] that hides all weights."""
        return self.total_bytes / self.tower_s

    @property
    def hidden_share(self) -> float:
        """The largest share of the weights that copies at this bandwidth can hide."""
        return min(1.0, self.bandwidth / self.needed_bandwidth)

    @property
    def hidden(self) -> bool:
        """Whether the tower takes as long as without copies; False if it was not measured."""
        return 0 < self.offloaded_s <= HIDDEN * self.tower_s

    def __str__(self) -> str:
        phrase = (
            f"offload: the weights of {self.streamed} of {self.layers} vision layers "
            f"({_mb(self.streamed_bytes)} of {_mb(self.total_bytes)}) are in host memory, "
        )
        if not self.tower_s:
            return phrase + "where the model runs, too: nothing is saved"
        enough = "hides" if self.bandwidth >= self.needed_bandwidth else "does not hide"
        return (
            f"{phrase}which frees {_mb(self.saved_bytes)} of the GPU; a bandwidth of {_gb_s(self.bandwidth)} "
            f"{enough} all weights (S/T is {_gb_s(self.needed_bandwidth)}), it can hide "
            f"{self.hidden_share:.0%} of them; vision takes {1e3 * self.tower_s:.2f} ms without copies and "
            f"{1e3 * self.offloaded_s:.2f} ms with them ({self.offloaded_s / self.tower_s - 1:+.1%})"
        )


def measure(stage: Stage, rings: Sequence[LayerRing]) -> OffloadReport:
    """Time a stage that iterates these rings. Its inputs must be valid; its outputs are overwritten."""
    report = OffloadReport(
        sum(ring.layers for ring in rings),
        sum(len(ring.streamed) for ring in rings),
        sum(ring.total_bytes for ring in rings),
        sum(ring.streamed_bytes for ring in rings),
        sum(ring.saved_bytes for ring in rings),
    )
    if stage.device.type != "cuda":
        return report
    copies_s = sum(_time_s(ring.fill, stage.device) for ring in rings)
    offloaded_s = _time_s(_Captured(stage).run, stage.device)
    with ExitStack() as stack:
        for ring in rings:
            stack.enter_context(ring.without_copies())
        tower_s = _time_s(_Captured(stage).run, stage.device)
    bandwidth = report.streamed_bytes / copies_s
    return replace(report, bandwidth=bandwidth, tower_s=tower_s, offloaded_s=offloaded_s)


class _Captured(Stage):
    """A stage's body in a graph that lives as long as this object."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.device)
        self._stage = stage
        self.capture(stage.recording)

    def body(self) -> None:
        self._stage.body()


def _time_s(run: Callable[[], object], device: torch.device) -> float:
    """Median seconds of a call, between device events."""
    times = []
    for number in range(WARM_UPS + RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(torch.cuda.current_stream(device))
        run()
        end.record(torch.cuda.current_stream(device))
        end.synchronize()
        if number >= WARM_UPS:
            times.append(begin.elapsed_time(end) / 1e3)
    return median(times)


def _gb_s(number: float) -> str:
    return f"{number / 1e9:.1f} GB/s"


def _mb(number: float) -> str:
    return f"{number / 1e6:.0f} MB"
