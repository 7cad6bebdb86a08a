"""A GPU's multiprocessors in two: which streams of the lanes are where, on a driver that only counts."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from fake_driver import CUDA, OLD, Driver, Stream, streams

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, EngineConfig, Split
from vla_accel_ros.engine.lanes.partitions import CannotDivide, divide, of_size, sizes
from vla_accel_ros.engine.lanes.streams import LaneStreams
from vla_accel_ros.engine.rules.rules import lanes_of

__all__ = ["streams"]


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
    assert made.split == Split(32, 100) and made.reason.startswith("partition: 32:100 multiprocessors")
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
    with pytest.raises(ValueError, match="partition is '33:99'"):
        made.take(Split(33, 99))
    with pytest.raises(ValueError, match="200 multiprocessors was asked for"):
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
    assert warning.getMessage() == made.reason
    assert f"partition is '32:100', but this GPU driver has no {OLD}" in made.reason
    assert ("without priorities" in made.reason) == (priorities == (0, 0))


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
