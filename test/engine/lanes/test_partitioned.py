"""Lanes on parts of a GPU: by numbers, by what is measured, or not at all, and the log says why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from builders import make_observation, make_policy
from current_streams import computing_in
from fake_driver import CUDA, OLD, Driver, Stream, streams

from vla_accel_ros.engine.actors.flow import FlowActor
from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, ONE, TEXT_APART, EngineConfig, Split
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes import streams as lane_streams
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.request import DENOISE, Act, MicroBatch, Request
from vla_accel_ros.engine.rules.partition import Measured
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.engine.stages.stages import Stages

__all__ = ["streams"]

CPU = torch.device("cpu")


def test_a_machine_without_a_gpu_has_none_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for word, level in (("32:100", logging.WARNING), ("auto", logging.INFO)):
            made = Partitioned(EngineConfig(lanes=ALL_APART, partition=word), CPU, True)
            assert made.split is None and made.streams is None and not made.chooses
            assert f"partition is '{word}', but the model runs on cpu" in made.reason
            assert caplog.records[-1].levelno == level
            assert caplog.records[-1].getMessage() == made.reason
    assert Partitioned(EngineConfig(lanes=ALL_APART), CPU, True).reason == "", "nobody asked for one"


@pytest.mark.parametrize("word", ["32:100", "auto"])
def test_an_engine_without_a_gpu_goes_on_as_without(word: str) -> None:
    policy = make_policy("pi05")
    found = []
    for partition in ("none", word):
        engine = Engine(policy, fast=True, lanes=ALL_APART, partition=partition)
        engine.prepare([2], [8])
        with engine.observe(make_observation()) as prefix:
            found.append(engine.act(prefix, noise=1).actions)
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.usefixtures("streams")
def test_a_split_needs_captured_kernels_and_auto_does_without() -> None:
    with pytest.raises(ValueError, match="partition is '32:100'"):
        Partitioned(EngineConfig(lanes=ALL_APART, partition="32:100"), CUDA, False, Driver())
    made = Partitioned(EngineConfig(lanes=ALL_APART, partition="auto"), CUDA, False, Driver())
    assert not made.chooses and "only the captured kernels" in made.reason
    for lanes in (ONE, TEXT_APART):
        made = Partitioned(EngineConfig(lanes=lanes, partition="auto"), CUDA, True, Driver())
        assert not made.chooses and f"lanes is '{lanes}', where frames and actions share" in made.reason


@pytest.mark.usefixtures("streams")
def test_a_split_by_numbers_is_there_from_the_start() -> None:
    made = Partitioned(EngineConfig(lanes=ALL_APART, partition="32:100"), CUDA, True, Driver())
    assert made.split == Split(32, 100) and made.reason.startswith("partition: 32:100")
    assert made.rule is None, "nothing switches it"
    assert [make.args[-1] for make in made.ops().values()] == [32, 100]
    without = Partitioned(EngineConfig(lanes=ALL_APART, partition="32:100"), CUDA, True, Driver(missing=OLD))
    assert without.split is None and without.ops() == {}


class Device:
    """Stages, an actor and a clock on which frames and actions take what is told, by split in use."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, took_ms: dict[Split | None, tuple[float, float]]
    ) -> None:
        self.driver, self.took_ms = Driver(), took_ms
        self.config = EngineConfig(lanes=ALL_APART, partition="auto", camera_hz=30.0, action_hz=400.0)
        self.made = Partitioned(self.config, CUDA, True, self.driver)
        self.stages: Any = SimpleNamespace(partitions={})
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132)
        )
        monkeypatch.setattr(Partitioned, "_measured", self._measured)

    def _measured(self, *_: Any) -> Any:
        split = self.made.split
        frame_ms, action_ms = self.took_ms[split]
        names = (
            {"action", "vision", "language"}
            if split is None
            else {(lane, split) for lane in ("action", "vision")}
        )
        assert split is None or names <= set(self.stages.partitions)
        return Measured(split, frame_ms * 1e-3, action_ms * 1e-3)

    def choose(self) -> None:
        self.made.choose(self.stages, cast(Any, None), 2, 20)


TOOK_MS: dict[Split | None, tuple[float, float]] = {
    None: (6.0, 9.0),
    Split(32, 100): (7.0, 3.5),
    Split(64, 68): (9.0, 2.4),
    Split(88, 44): (12.0, 2.6),
    Split(96, 36): (16.0, 1.8),
}


@pytest.mark.usefixtures("streams")
def test_auto_measures_the_candidates_and_takes_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(monkeypatch, TOOK_MS)
    made = device.made
    assert made.chooses and made.split is None
    with caplog.at_level(logging.INFO):
        device.choose()
    assert not made.chooses, "once"
    assert [one.split for one in made.measured] == list(TOOK_MS)
    assert made.split == Split(64, 68) and made.sets == (Split(32, 100), Split(64, 68))
    assert [record.getMessage() for record in caplog.records] == [made.reason]
    used = [made.split for _ in made.each()]
    assert used == [Split(32, 100), Split(64, 68)], (
        "what may be switched to is captured, and the lanes' own last"
    )
    assert made.split == Split(64, 68)


@pytest.mark.usefixtures("streams")
def test_auto_takes_none_where_that_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, {**TOOK_MS, None: (6.0, 2.4)})
    device.choose()
    assert device.made.split is None and device.made.sets == ()
    assert device.made.reason.startswith("partition: auto takes none.")
    assert len(list(device.made.each())) == 1


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("what", ["an old driver", "no memory"])
def test_auto_takes_none_where_it_cannot_have_any(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    device = Device(monkeypatch, TOOK_MS)
    if what == "an old driver":
        device.driver.missing = OLD
    else:
        monkeypatch.setattr(device.made, "_measured", _no_memory)
    device.choose()
    assert device.made.split is None and device.made.sets == () and not device.made.chooses
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == device.made.reason


@pytest.mark.parametrize("staggered", [0, 3])
def test_auto_measures_on_the_stages_of_an_engine(
    monkeypatch: pytest.MonkeyPatch, streams: type[Stream], staggered: int
) -> None:
    """Of one on a CPU, whose stages run in streams that only tell of it."""
    engine = Engine(make_policy("pi0"), fast=True, lanes=ACTIONS_APART, steps=3, staggered=staggered, slots=8)
    stages, actor = engine.runner.stages, engine.runner.actor
    assert isinstance(stages, Stages) and isinstance(actor, FlowActor)
    ran = set[Any]()
    run = Stage.run

    def noted(stage: Stage) -> None:
        ran.add((type(stage).__name__, stage.partition))
        run(stage)

    monkeypatch.setattr(Stage, "run", noted)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132)
    )
    local = threading.local()  # as current streams are
    monkeypatch.setattr(lane_streams, "on_stream", partial(_in_thread, local))
    computing_in(monkeypatch, lambda: local.stream)
    config = EngineConfig(lanes=ACTIONS_APART, partition="auto", steps=3, staggered=staggered)
    made = Partitioned(config, CUDA, True, Driver())
    made.serve(stages, None)
    made.choose(stages, actor, 2, 8)
    splits = [Split(32, 100), Split(64, 68), Split(88, 44), Split(96, 36)]
    assert [one.split for one in made.measured] == [None, *splits]
    acting, seeing = ({lane, *((lane, split) for split in splits)} for lane in ("action", "vision"))
    steps = "StaggeredStep" if staggered else "Denoise"
    assert {partition for name, partition in ran if name == steps} == acting
    assert {partition for name, partition in ran if name in ("Encode", "Prefill")} == seeing
    assert stages.pool.free == stages.pool.slots


@contextmanager
def _in_thread(local: threading.local, stream: Stream) -> Iterator[None]:
    before, local.stream = getattr(local, "stream", None), stream
    yield
    local.stream = before


def _no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.usefixtures("streams")
def test_a_micro_batch_is_computed_in_the_split_that_it_names() -> None:
    config = EngineConfig(lanes=ALL_APART, partition="auto")
    made = Partitioned(config, CUDA, True, Driver())
    assert made.streams is not None
    split = made.streams.add(Split(32, 1))
    request = Request(Act())
    with made.computing(MicroBatch(DENOISE, (request,), split=split)):
        assert Stream.current == [made.streams.named()["action", split]]
    with made.computing(MicroBatch(DENOISE, (request,))):
        assert Stream.current == []
