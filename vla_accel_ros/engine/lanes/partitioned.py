"""Applies the option `partition`: makes streams of the lanes, chooses launch tables, and decides "auto".

A split given by numbers is made with the engine, and its kernels use the launch table that `vla tune --sms`
found for so many multiprocessors, if there is one. "auto" needs the stages, so it measures in
`Engine.prepare`: each candidate and no split, frames and actions beside each other without a break. That is
what a robot gets, and the only fair comparison with no split, where both share the GPU and an action waits
for blocks of a frame. Its kernels use the same launch table whatever it takes, so chunks have the same bits
with every split.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from vla_accel_ros.engine.actors.flow import FlowActor
from vla_accel_ros.engine.config import AUTO, NO_PARTITION, EngineConfig, Split
from vla_accel_ros.engine.lanes.partitions import CannotDivide
from vla_accel_ros.engine.lanes.streams import LaneStreams
from vla_accel_ros.engine.request import ACT, OBSERVE, MicroBatch
from vla_accel_ros.engine.rules.partition import Measured, Partitions, candidates, choose
from vla_accel_ros.engine.rules.rules import lanes_of
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.ops import ops_for

_CAPTURED = "only the captured kernels of a policy that acts by flow keep their multiprocessors"
WARM_UPS = 2
FRAMES = 24
"""Number of frames computed beside actions."""
LATE = 0.99
"""Quantile of the actions' times that is reported."""

_LOG = logging.getLogger(__name__)


class Partitioned:
    """The partition of one engine. captured: whether captured stages of kernels denoise actions. driver:
    libcuda, None = the installed one.

    Attributes: streams, of the lanes, None with one lane or without a GPU; rule, by which micro-batches name
    their split, None if there is one for all; chooses, whether "auto" has yet to choose; measured, what it
    chose from; reason, one sentence about the split in use, "" without a request.
    Raises ValueError for a split that the policy or the device cannot have.
    """

    def __init__(
        self, config: EngineConfig, device: torch.device, captured: bool, driver: Any = None
    ) -> None:
        self._config, self._device, self._lanes = config, device, lanes_of(config)
        self.streams: LaneStreams | None = None
        if device.type == "cuda" and len(self._lanes) > 1:
            self.streams = LaneStreams(self._lanes, device, driver)
        self.rule: Partitions | None = None
        self.measured: tuple[Measured, ...] = ()
        self.chooses, self.reason = False, ""
        requested, split = config.partition, config.split
        if requested == NO_PARTITION:
            return
        if device.type != "cuda":
            self._ignore(f"the model runs on {device}, which has no multiprocessors to divide")
        elif not captured:
            if split is not None:
                raise ValueError(
                    f"partition is '{requested}', but {_CAPTURED}: use fast with pi0 or pi0.5, or partition "
                    f"'{NO_PARTITION}'."
                )
            self._ignore(_CAPTURED)
        elif self.streams is None or not self.streams.apart:
            self._ignore(f"lanes is '{config.lanes}', where frames and actions share a lane")
        elif split is not None:
            self.streams.take(split)
            self.reason = self.streams.reason
        else:
            self.rule = Partitions(next(lane for lane, kinds in self._lanes.items() if OBSERVE in kinds))
            self.chooses = True
            self.reason = "partition is 'auto', which chooses when the engine is prepared: none until then"

    @property
    def split(self) -> Split | None:
        """The split in use; equation 5 may use others of `sets` for a while."""
        return None if self.streams is None else self.streams.split

    @property
    def missing(self) -> bool:
        """Whether a split was requested by numbers and there is none."""
        return self._config.split is not None and self.split is None

    @property
    def sets(self) -> tuple[Split, ...]:
        """Splits between which the rule chooses; () = it has no choice."""
        return () if self.rule is None else self.rule.sets

    @property
    def switched(self) -> int:
        """How often the rule switched to another of them."""
        return 0 if self.rule is None else self.rule.switched

    def ops(self) -> dict[str, Any]:
        """Arguments of Stages: kernels with the best launch table for the multiprocessors of either side."""
        if self.split is None:
            return {}
        make = partial(ops_for, self._device)
        return {"ops": partial(make, self.split.actions), "prefix_ops": partial(make, self.split.rest)}

    def serve(self, stages: Stages, forward: PackedForward | None) -> None:
        """Have stages and forwards captured on the streams of the lanes that call them."""
        if self.streams is None:
            return
        stages.partitions.update(self.streams.named())
        if forward is not None:
            forward.partition = partial(_current, stages)

    def computing(self, batch: MicroBatch) -> AbstractContextManager[None]:
        """Context in which a lane computes a micro-batch: the split that it names."""
        if self.streams is None or batch.split is None:
            return nullcontext()
        lane = next(lane for lane, kinds in self._lanes.items() if batch.requests[-1].kind in kinds)
        return self.streams.elsewhere(lane, batch.split)

    def each(self) -> Iterator[None]:
        """Yields once with each split in use that the rule may take, the lanes' own last."""
        streams = self.streams
        if streams is None or len(self.sets) < 2:
            yield
            return
        with _restoring(streams):
            for split in (*(split for split in self.sets if split != streams.split), streams.split):
                streams.use(split)
                yield

    def choose(self, stages: Stages, actor: FlowActor, views: int, prompt: int) -> None:
        """Measure splits on frames with so many images and words, and take one or none."""
        streams = self.streams
        assert streams is not None and self.rule is not None
        self.chooses = False
        sms = torch.cuda.get_device_properties(self._device).multi_processor_count
        try:
            with _restoring(streams):
                measured = [self._measured(stages, actor, views, prompt)]
                for number in candidates(sms):
                    split = streams.add(Split(number, 1))
                    if any(split == times.split for times in measured):
                        continue
                    stages.partitions.update(streams.named())
                    streams.use(split)
                    measured.append(self._measured(stages, actor, views, prompt))
        except CannotDivide as error:
            streams.go_without(AUTO, error)
            self.reason = streams.reason
            return
        except torch.OutOfMemoryError as error:
            self.reason = f"partition: auto takes none, as the GPU has no room for graphs of splits ({error})"
            _LOG.warning("%s", self.reason)
            return
        self.measured = tuple(measured)
        choice = choose(measured, self._config.camera_hz, self._config.action_hz)
        streams.use(choice.split)
        self.rule.sets, self.reason = choice.sets, choice.reason
        _LOG.info("%s", self.reason)

    def _measured(self, stages: Stages, actor: FlowActor, views: int, prompt: int) -> Measured:
        streams = self.streams
        assert streams is not None
        side, steps = stages.model.config.vision.image_size, self._config.steps
        images = np.zeros((views, side, side, 3), np.uint8)
        words = torch.zeros(prompt, dtype=torch.int64)
        actions, frames = (
            next(lane for lane, kinds in self._lanes.items() if kind in kinds) for kind in (ACT, OBSERVE)
        )
        with stages.pool.holding(2) as (frame_slot, acted):

            def frame(slot: int = frame_slot) -> int:
                with streams.on(frames):
                    (length,) = stages.observe([images], [words], [slot])
                streams.of(frames).synchronize()
                return length

            length = frame(acted)

            def action() -> None:
                with streams.on(actions):
                    actor.rehearse(acted, length, steps)
                streams.of(actions).synchronize()

            return measure(streams.split, frame, action)

    def _ignore(self, reason: str) -> None:
        """Use no split. Logs a warning if the split was given by numbers, which were meant for this
        machine."""
        self.reason = f"partition is '{self._config.partition}', but {reason}: there is none"
        _LOG.log(logging.INFO if self._config.split is None else logging.WARNING, "%s", self.reason)


@contextmanager
def _restoring(streams: LaneStreams) -> Iterator[None]:
    """Restore the split in use after the block."""
    split = streams.split
    try:
        yield
    finally:
        streams.use(split)


def _current(stages: Stages) -> tuple[Any, torch.cuda.Stream | None]:
    name = stages.partition()
    return name, stages.partitions[name]


def measure(
    split: Split | None,
    frame: Callable[[], object],
    action: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    frames: int = FRAMES,
) -> Measured:
    """Returns the times of a split. frame, action: compute one, and return when it is finished. frame is
    called in this thread, action also in another, at the same time. Errors of either are raised here."""
    _times(frame, clock, WARM_UPS)
    warm = _times(action, clock, WARM_UPS)
    actions, errors, ended = list[float](), list[BaseException](), threading.Event()

    def act() -> None:
        try:
            while not ended.is_set():
                actions.extend(_times(action, clock, 1))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act, name="actions beside frames")
    thread.start()
    try:
        frame_times = _times(frame, clock, frames)
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
    return Measured(split, statistics.median(frame_times), late(actions or warm[-1:]))


def late(seconds: list[float]) -> float:
    """The LATE quantile of the times."""
    ranked = sorted(seconds)
    return ranked[min(len(ranked) - 1, int(LATE * len(ranked)))]


def _times(run: Callable[[], object], clock: Callable[[], float], count: int) -> list[float]:
    times = []
    for _ in range(count):
        began_s = clock()
        run()
        times.append(clock() - began_s)
    return times
