"""A GPU's multiprocessors in two: which streams of the lanes are where, on a driver that only counts."""

from __future__ import annotations

import itertools
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
from fake_driver import Driver, Stream, streams

from vla_accel_ros.engine.actors.flow import FlowActor
from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, ONE, TEXT_APART, EngineConfig, Split
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.lanes.partitions import CannotDivide, divide, of_size, sizes
from vla_accel_ros.engine.lanes.split_times import RUNS, WARM_UPS, late, measure
from vla_accel_ros.engine.lanes.streams import LaneStreams
from vla_accel_ros.engine.policies.chunks import WholeChunks
from vla_accel_ros.engine.policies.lanes import lanes_of
from vla_accel_ros.engine.policies.partition import Measured
from vla_accel_ros.engine.request import ACT, DENOISE, MicroBatch, Request
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.engine.stages.stages import Stages

__all__ = ["streams"]

CUDA = torch.device("cuda", 0)
OLD = "cuGreenCtxCreate"


def lane_streams(driver: Driver, **options: Any) -> LaneStreams:
    return LaneStreams(lanes_of(EngineConfig(**{"lanes": ALL_APART, **options})), CUDA, driver)


def sms(made: LaneStreams, driver: Driver) -> dict[str, tuple[int, int]]:
    """Multiprocessors and priority of each lane's stream in use."""
    found = {}
    for lane in ("first", "action", "vision", "language"):
        try:
            found[lane] = driver.made[cast(Any, made.of(lane)).number]
        except KeyError:
            continue
    return found


@pytest.mark.usefixtures("streams")
def test_a_device_is_divided_into_what_was_asked_for_and_the_rest() -> None:
    driver = Driver()
    one, two = divide(CUDA, 100, ((-3, -2), (0,)), driver)
    assert (one.sms, two.sms) == (104, 28) == sizes(CUDA, 100, driver)
    assert [driver.made[cast(Any, stream).number] for stream in (*one.streams, *two.streams)] == [
        (104, -3),
        (104, -2),
        (28, 0),
    ]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(("asked", "found"), [(32, 32), (100, 100), (33, 40), (28, 28), (1, 8), (124, 124)])
def test_a_set_of_a_size_is_found_on_either_side(asked: int, found: int) -> None:
    assert of_size(CUDA, asked, Driver()).sms == found


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (0, "a partition of 0 multiprocessors was asked for; cuda:0 has 132 in all"),
        (132, "a partition of 132 multiprocessors was asked for; cuda:0 has 132 in all"),
        (130, "a partition of 130 multiprocessors leaves none of the 132 of cuda:0: give fewer"),
    ],
)
def test_a_number_that_leaves_nothing_is_refused(first: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        divide(CUDA, first, driver=Driver())


def test_a_driver_that_cannot_says_why() -> None:
    with pytest.raises(CannotDivide, match=rf"has no {OLD} \(one of CUDA 12.4 or newer has it\)"):
        divide(CUDA, 32, driver=Driver(missing=OLD))
    with pytest.raises(CannotDivide, match=f"{OLD} failed with error 801"):
        divide(CUDA, 32, driver=Driver(failing=OLD))


@pytest.mark.usefixtures("streams")
def test_lanes_of_actions_are_in_one_set_and_the_others_in_the_other() -> None:
    driver = Driver()
    made = lane_streams(driver)
    assert sms(made, driver) == {}, "without a split they are plain streams"
    assert [made.of(lane).priority for lane in ("action", "vision", "language")] == [-3, -2, -1]
    made.take(Split(32, 100))
    assert made.split == Split(32, 100) and made.why.startswith("partition: 32:100 multiprocessors")
    assert sms(made, driver) == {"action": (32, -3), "vision": (100, -2), "language": (100, -1)}


@pytest.mark.usefixtures("streams")
def test_first_chunks_are_actions_and_text_goes_with_frames() -> None:
    driver = Driver()
    made = lane_streams(driver, staggered=2, staggering="fresh")
    made.take(Split(32, 100))
    found = {lane: of for lane, (of, _) in sms(made, driver).items()}
    assert found == {"first": 32, "action": 32, "vision": 100, "language": 100}
    made = lane_streams(driver, lanes=ACTIONS_APART)
    made.take(Split(64, 68))
    assert {lane: of for lane, (of, _) in sms(made, driver).items()} == {"action": 64, "vision": 68}


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(
    ("asked", "found"), [((100, 32), (100, 32)), ((32, 100), (32, 100)), ((4, 8), (8, 124))]
)
def test_the_driver_rounds_the_side_where_it_costs_nothing(
    asked: tuple[int, int], found: tuple[int, int]
) -> None:
    driver = Driver()
    made = lane_streams(driver)
    made.take(Split(*asked))
    assert made.split == Split(*found)
    assert sms(made, driver)["action"][0] == found[0]
    assert sms(made, driver)["vision"][0] == found[1]


@pytest.mark.usefixtures("streams")
def test_a_split_that_does_not_fit_is_refused_with_those_that_do() -> None:
    made = lane_streams(Driver())
    with pytest.raises(ValueError, match=r"partition is '33:99', but cuda:0 has 132 .* 40:92 or 28:104"):
        made.take(Split(33, 99))
    with pytest.raises(ValueError, match="200 multiprocessors was asked for; cuda:0 has 132"):
        made.take(Split(32, 200))
    assert made.split is None


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("priorities", [(0, -5), (0, 0)])
def test_an_old_driver_has_priorities_and_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, priorities: tuple[int, int]
) -> None:
    monkeypatch.setattr(Stream, "priorities", priorities)
    made = lane_streams(Driver(missing=OLD))
    made.take(Split(32, 100))
    assert made.split is None and made.of("action").priority == -3
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == made.why
    assert f"partition is '32:100', but this GPU driver has no {OLD}" in made.why
    assert ("without priorities" in made.why) == (priorities == (0, 0))


@pytest.mark.usefixtures("streams")
def test_every_stream_has_a_name_for_its_graphs() -> None:
    made = lane_streams(Driver(), lanes=ACTIONS_APART)
    one, two = made.add(Split(32, 1)), made.add(Split(64, 1))
    named = made.named()
    assert set(named) == {
        "action",
        "vision",
        *((lane, of) for lane in ("action", "vision") for of in (one, two)),
    }
    assert len(set(map(id, named.values()))) == 6
    assert made.splits == (Split(32, 100), Split(64, 68))
    assert made.add(Split(30, 1)) == one and made.named() == named, "what is there already is not made again"
    with pytest.raises(KeyError, match="no streams of 1:2"):
        made.use(Split(1, 2))


@pytest.mark.usefixtures("streams")
def test_a_micro_batch_in_another_split_is_in_the_lanes_order() -> None:
    made = lane_streams(Driver(), lanes=ACTIONS_APART)
    split = made.add(Split(32, 1))
    base, other = made.of("action"), made.named()["action", split]
    with made.on("action"), pytest.raises(RuntimeError, match="broken"), made.elsewhere("action", split):
        assert Stream.current == [base, other]
        raise RuntimeError("broken")
    assert Stream.said == [("waits", other, base), ("waits", base, other)], "also where it failed"
    with made.elsewhere("action", None):
        made.use(split)
        with made.elsewhere("action", split):
            assert Stream.current == []
    assert len(Stream.said) == 2, "who is there already waits for nothing"


CPU = torch.device("cpu")


def test_a_machine_without_a_gpu_has_none_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for word, level in (("32:100", logging.WARNING), ("auto", logging.INFO)):
            made = Partitioned(EngineConfig(lanes=ALL_APART, partition=word), CPU, True)
            assert made.split is None and made.streams is None and not made.chooses
            assert f"partition is '{word}', but the model runs on cpu" in made.why
            assert caplog.records[-1].levelno == level
            assert caplog.records[-1].getMessage() == made.why
    assert Partitioned(EngineConfig(lanes=ALL_APART), CPU, True).why == "", "nobody asked for one"


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
    with pytest.raises(ValueError, match="partition is '32:100', but only the captured kernels"):
        Partitioned(EngineConfig(lanes=ALL_APART, partition="32:100"), CUDA, False, Driver())
    made = Partitioned(EngineConfig(lanes=ALL_APART, partition="auto"), CUDA, False, Driver())
    assert not made.chooses and "only the captured kernels" in made.why
    for lanes in (ONE, TEXT_APART):
        made = Partitioned(EngineConfig(lanes=lanes, partition="auto"), CUDA, True, Driver())
        assert not made.chooses and f"lanes is '{lanes}', where frames and actions share" in made.why


@pytest.mark.usefixtures("streams")
def test_a_split_by_numbers_is_there_from_the_start() -> None:
    made = Partitioned(EngineConfig(lanes=ALL_APART, partition="32:100"), CUDA, True, Driver())
    assert made.split == Split(32, 100) and made.why.startswith("partition: 32:100")
    first = WholeChunks()
    assert made.policy(first) is first, "nothing switches it"
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
        self.made.policy(WholeChunks())
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
        return Measured(split, 1e-3, 1e-3, frame_ms * 1e-3, action_ms * 1e-3)

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
    assert [record.getMessage() for record in caplog.records] == [made.why]
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
    assert device.made.why.startswith("partition: auto takes none.")
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
    assert warning.getMessage() == device.made.why


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
    monkeypatch.setattr(torch.cuda, "stream", partial(_in_thread, local))
    computing_in(monkeypatch, lambda: local.stream)
    config = EngineConfig(lanes=ACTIONS_APART, partition="auto", steps=3, staggered=staggered)
    made = Partitioned(config, CUDA, True, Driver())
    made.policy(WholeChunks())
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
    request = Request(ACT)
    request.lane = "action"
    with made.computing(MicroBatch(DENOISE, (request,), split=split)):
        assert Stream.current == [made.streams.named()["action", split]]
    with made.computing(MicroBatch(DENOISE, (request,))):
        assert Stream.current == []


def test_times_alone_and_beside_each_other() -> None:
    acted: list[float] = []
    now = iter(range(10**9))
    found = measure(
        Split(32, 100), lambda: None, lambda: acted.append(0.0), lambda: float(next(now)), frames=4
    )
    assert found.split == Split(32, 100)
    assert found.frame_s == found.action_s == 1.0, "alone nobody else reads the clock"
    assert found.frame_beside_s >= 1.0 and found.action_beside_s >= 1.0
    assert len(acted) >= 10


def test_what_fails_beside_each_other_is_told() -> None:
    calls, failing = itertools.count(), threading.Event()
    alone = WARM_UPS + RUNS

    def action() -> None:
        if next(calls) == alone:
            failing.set()
            raise RuntimeError("an action failed")

    seen = itertools.count()

    def frame() -> None:
        assert next(seen) < alone or failing.wait(20.0)

    with pytest.raises(RuntimeError, match="an action failed"):
        measure(None, frame, action, frames=1)
    with pytest.raises(RuntimeError, match="a frame failed"):
        measure(None, _failing, lambda: None)


def _failing() -> None:
    raise RuntimeError("a frame failed")


def test_late_is_what_99_of_100_take_at_most() -> None:
    assert late([float(n) for n in range(1, 201)]) == 199.0
    assert late([3.0]) == 3.0
