"""The CUDA streams of an engine's lanes: by priority, and if wanted in sets of multiprocessors.

Without a split the lanes' streams share all multiprocessors, and those of actions have the highest priority.
With a split, streams of actions are in the first set and the others in the second, so that neither waits for
the other's blocks. If the driver cannot divide the device, there are only priorities, which is logged once;
if it has no priorities either, the log says so.

Streams of several splits may exist at once, each with the graphs that were captured on it. A lane computes in
the split in use; `elsewhere` computes a micro-batch in another, in the lane's order.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.current_stream import on_stream
from vla_accel_ros.engine.lanes.partitions import CannotDivide, divide, sizes
from vla_accel_ros.engine.request import ACT, WHOLE

_LOG = logging.getLogger(__name__)


class LaneStreams:
    """lanes: lane -> kinds that run in it, highest priority first. driver: libcuda, None = the installed one.

    Attributes: split, the one in use, None = none; reason, one sentence about it, "" if none was requested.
    """

    def __init__(self, lanes: Mapping[str, Sequence[str]], device: torch.device, driver: Any = None) -> None:
        self._device, self._driver = device, driver
        # Lower is more urgent; 0 is the default of CUDA streams.
        self._priorities = {name: level - len(lanes) for level, name in enumerate(lanes)}
        self._acting = [name for name, kinds in lanes.items() if set(kinds) <= {ACT, WHOLE}]
        self._streams: dict[Split | None, dict[str, torch.cuda.Stream]] = {
            None: {
                lane: torch.cuda.Stream(device, priority=level) for lane, level in self._priorities.items()
            }
        }
        self.split: Split | None = None
        self.reason = ""

    @property
    def apart(self) -> bool:
        """Whether actions have lanes of their own, without which they cannot have a set of their own."""
        return bool(self._acting)

    @property
    def splits(self) -> tuple[Split, ...]:
        """All splits that have streams."""
        return tuple(split for split in self._streams if split is not None)

    def named(self) -> dict[Hashable, torch.cuda.Stream]:
        """Every stream by a unique name: the lane's name without a split, else (lane, split)."""
        return {
            (lane if split is None else (lane, split)): stream
            for split, streams in self._streams.items()
            for lane, stream in streams.items()
        }

    def add(self, wanted: Split) -> Split:
        """Make streams of a split with at least as many multiprocessors on both sides; returns the split that
        the driver made.

        Raises ValueError if the device cannot have this split, CannotDivide if it cannot be divided at all.
        """
        acting = [self._priorities[lane] for lane in self._acting]
        other = {lane: level for lane, level in self._priorities.items() if lane not in self._acting}
        halves = sizes(self._device, wanted.actions, self._driver)
        if halves[1] >= wanted.rest:
            acting_part, remainder = divide(
                self._device, wanted.actions, (acting, [*other.values()]), self._driver
            )
        else:  # dividing in the other order may lose less by rounding
            turned = sizes(self._device, wanted.rest, self._driver)
            if turned[1] < wanted.actions:
                raise ValueError(
                    f"partition is '{wanted}', but {self._device} has {sum(halves)} multiprocessors, which "
                    f"can be divided as {halves[0]}:{halves[1]} or {turned[1]}:{turned[0]}: give numbers "
                    "that fit into one of them."
                )
            remainder, acting_part = divide(
                self._device, wanted.rest, ([*other.values()], acting), self._driver
            )
        split = Split(acting_part.sms, remainder.sms)
        if split not in self._streams:
            self._streams[split] = {
                **dict(zip(self._acting, acting_part.streams, strict=True)),
                **dict(zip(other, remainder.streams, strict=True)),
            }
        return split

    def take(self, wanted: Split) -> None:
        """Use a split from now on; none, with one warning, if the device cannot be divided.

        Raises ValueError if the device cannot have this split.
        """
        try:
            self.use(self.add(wanted))
            self.reason = f"partition: {self.split} multiprocessors (actions : the rest)"
            _LOG.info("%s", self.reason)
        except CannotDivide as error:
            self.go_without(str(wanted), error)

    def go_without(self, wanted: str, error: CannotDivide) -> None:
        """Use no split, and log a warning."""
        self.use(None)
        self.reason = f"partition is '{wanted}', but {error}: {self._otherwise()}"
        _LOG.warning("%s", self.reason)

    def use(self, split: Split | None) -> None:
        """Switch to a split that has streams. Call it while nothing is computed."""
        self.split = split

    def of(self, lane: str) -> torch.cuda.Stream:
        """The lane's stream in the split in use."""
        return self._streams[self.split][lane]

    def on(self, lane: str) -> AbstractContextManager[None]:
        """Put the block's work on the lane's stream."""
        return on_stream(self.of(lane))

    @contextmanager
    def elsewhere(self, lane: str, split: Split | None) -> Iterator[None]:
        """Inside `on`: put the block's work on the lane's stream of another split, ordered after the earlier
        and before the later work of the lane's stream. None: on its own stream."""
        if split is None or split == self.split:
            yield
            return
        base, other = self.of(lane), self._streams[split][lane]
        other.wait_stream(base)
        try:
            with on_stream(other):
                yield
        finally:
            base.wait_stream(other)

    def _otherwise(self) -> str:
        lowest, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        if lowest == greatest:
            return "the lanes share all multiprocessors, without priorities, which it does not have either"
        return "the lanes share all multiprocessors, and those of actions come first by priority"
