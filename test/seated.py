"""Chunks in seats, stepped together as an engine's micro-batches step them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart, PlainSeats, Seats
from vla_accel_ros.engine.stages.plain.stages import CapturedPlainSeats
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Flow


@torch.inference_mode()
def flow_of(seats: Seats, seat: int) -> Flow:
    """The present actions and last update of the chunk in a seat."""
    if isinstance(seats, PlainSeats):
        return seats._flows[seat]
    if isinstance(seats, CapturedSeats):
        return Flow(*(part[seat : seat + 1].clone() for part in (seats.stage.x, seats.stage.update)))
    assert isinstance(seats, CapturedPlainSeats)
    chunk = seats._chunks[seat]
    return Flow(chunk.readback.x.clone(), chunk.update.clone())


class Seated:
    """Chunks by number, each in a seat from its first step to its last; flows: of those that are finished."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._taken: dict[int, list[int]] = {}  # number -> seat, steps done
        self.flows: dict[int, Flow] = {}

    @property
    def under_way(self) -> list[int]:
        """Numbers, oldest first."""
        return list(self._taken)

    @property
    def full(self) -> bool:
        return len(self._taken) == self._seats.count

    def begin(
        self, number: int, noise: Tensor, state: Tensor | None, kv: Any, guide: Inpainting | None = None
    ) -> None:
        used = {seat for seat, _ in self._taken.values()}
        seat = next(seat for seat in range(self._seats.count) if seat not in used)
        with torch.inference_mode():
            self._seats.take(seat, ChunkStart(noise, state, kv, guide))
        self._taken[number] = [seat, 0]

    def step(self, *numbers: int) -> list[int]:
        """The next step of these chunks, or of all; the numbers of those it finished."""
        batch, finished = list(numbers or self._taken), []
        if batch:
            with torch.inference_mode():
                self._seats.step([self._taken[number][0] for number in batch])
        for number in batch:
            self._taken[number][1] += 1
            if self._taken[number][1] == self._seats.steps:
                self.flows[number] = flow_of(self._seats, self._taken.pop(number)[0])
                finished.append(number)
        return finished

    def run(self) -> None:
        """All to their ends."""
        while self._taken:
            self.step()

    def drop(self, number: int) -> None:
        """A chunk leaves its seat before it is finished."""
        self._seats.leave(self._taken.pop(number)[0])
