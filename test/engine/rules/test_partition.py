"""Which multiprocessors actions have: from measured times, and by how many frames wait."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vla_accel_ros.engine.config import ALL_APART, AUTO, ONE, TEXT_APART, EngineConfig, Split
from vla_accel_ros.engine.request import Act, Ask, Observe, Request, Status
from vla_accel_ros.engine.rules.chunks import WholeChunks
from vla_accel_ros.engine.rules.partition import (
    Measured,
    Partitions,
    candidates,
    choose,
    front,
    sms_of_actions,
    split_for,
)
from vla_accel_ros.engine.rules.rules import LANES, Rules


def came(split: Split | None, frame_ms: float, action_ms: float) -> Measured:
    """What a split came to beside each other; alone is of no account for the choice."""
    return Measured(split, frame_ms * 1e-3, action_ms * 1e-3)


NONE = came(None, 6.5, 3.96)
FEW, HALF, MOST = (
    came(Split(44, 88), 9.3, 5.37),
    came(Split(68, 64), 11.5, 4.74),
    came(Split(100, 32), 18.1, 1.97),
)
H200 = (NONE, FEW, HALF, MOST)
"""Staggered steps beside frames, as they were measured: only the last split is better in anything."""
FALLING = (
    came(None, 6.0, 9.0),
    came(Split(32, 100), 7.0, 3.5),
    came(Split(64, 68), 10.0, 2.4),
    came(Split(96, 36), 16.0, 1.8),
)
"""As splits would be whose kernels use what they have."""


def test_the_front_leaves_out_what_another_beats_in_both() -> None:
    assert front(H200) == [NONE, MOST]
    assert front(FALLING) == list(FALLING)
    assert front(list(reversed(FALLING))) == list(FALLING)
    assert front([NONE, came(Split(1, 2), 6.5, 3.96)]) == [NONE], "who gains nothing is not on it"


def test_no_split_is_taken_where_both_rates_are_met_without() -> None:
    choice = choose(H200, 30.0, 60.0)
    assert (choice.split, choice.sets) == (None, ())
    assert choice.reason.startswith("partition: auto takes none.") and "6.5 ms" in choice.reason
    assert "with 100:32, a frame takes 18.1 ms and an action (p99) 2.0 ms" in choice.reason


def test_a_split_is_taken_where_actions_would_be_late_without() -> None:
    choice = choose(H200, 30.0, 500.0)
    assert choice.split == Split(100, 32)
    assert choice.sets == (Split(100, 32),), "the others take more than twice as long as asked, or are beaten"
    assert "auto takes 100:32" in choice.reason and "without a split, a frame takes 6.5 ms" in choice.reason


def test_of_those_that_meet_the_rates_the_one_with_the_fastest_frames() -> None:
    assert choose(FALLING, 30.0, 1e3 / 4.0).split == Split(32, 100)
    assert choose(FALLING, 30.0, 1e3 / 3.0).split == Split(64, 68)


def test_where_no_split_meets_the_rates_the_one_that_misses_them_least() -> None:
    assert choose(FALLING, 30.0, 1000.0).split == Split(96, 36)
    assert choose(FALLING, 150.0, 1e3 / 9.0).split is None, "frames would be late in any, and least without"
    assert choose(FALLING, 200.0, 1e3 / 3.0).split == Split(32, 100), "1.4 frames, 1.17 actions"


def test_without_rates_there_is_nothing_to_gain() -> None:
    assert choose(FALLING, 0.0, 0.0).split is None


def test_a_split_that_is_hardly_better_is_not_worth_it() -> None:
    near = came(Split(32, 100), 5.8, 3.0)
    assert choose([came(None, 6.0, 3.5), near], 30.0, 60.0).split is None
    assert choose([came(None, 6.5, 3.5), near], 30.0, 60.0).split == Split(32, 100)


def test_a_choice_has_the_splits_of_the_front_for_more_load() -> None:
    choice = choose(FALLING, 30.0, 1e3 / 1.9)
    assert choice.split == Split(96, 36)
    assert choice.sets == (Split(32, 100), Split(64, 68), Split(96, 36))
    assert choice.reason.endswith("While several frames wait: down to 32:100.")
    tight = choose(FALLING, 30.0, 1e3 / 1.7)
    assert tight.sets == (Split(64, 68), Split(96, 36)), "3.5 ms are more than twice 1.7"


def test_equation_5() -> None:
    found = [sms_of_actions(pending, most=88, least=32, alpha=24) for pending in range(6)]
    assert found == [88, 88, 64, 40, 32, 32]


def test_between_two_captured_splits_the_next_larger_is_taken() -> None:
    sets = (Split(88, 44), Split(32, 100), Split(64, 68))
    found = [split_for(pending, sets).actions for pending in range(6)]
    assert found == [88, 88, 64, 64, 32, 32]
    assert split_for(9, (Split(32, 100),)) == Split(32, 100)


def test_what_is_tried_is_in_steps_of_the_driver_and_leaves_some() -> None:
    assert candidates(132) == [32, 64, 88, 96]
    assert candidates(16) == [8] and candidates(8) == [] and candidates(1) == []
    for count in range(1, 200):
        assert all(0 < number < count for number in candidates(count))


class Switching:
    """A policy of three lanes with three splits, and what it hands out."""

    def __init__(self, sets: Sequence[Split]) -> None:
        self.partitions = Partitions("vision")
        self.rules = Rules(WholeChunks(), lanes=LANES[ALL_APART], partitions=self.partitions)
        self.partitions.sets = tuple(sets)

    def split(self, lane: str, *ready: Request) -> Split | None:
        batch = self.rules.next(lane, ready, 0.0)
        assert batch is not None
        return batch.split


SETS = (Split(32, 100), Split(64, 68), Split(88, 44))


def frames(count: int) -> list[Request]:
    return [Request(Observe(), robot=str(number)) for number in range(count)]


def test_both_sides_keep_the_split_of_the_frame_that_is_computed() -> None:
    switching = Switching(SETS)
    action = Request(Act())
    assert switching.split("action", action) == SETS[2], "nothing waits"
    assert switching.split("vision", *frames(1)) == SETS[2], "one frame: the most"
    assert switching.split("vision", *frames(2)) == SETS[1]
    assert switching.split("action", action) == SETS[1], "the frames that wait are not shown to this lane"
    assert switching.split("language", Request(Ask())) == SETS[1]
    assert switching.split("vision", *frames(4)) == SETS[0]
    assert switching.rules.next("vision", [], 0.0) is None
    assert switching.split("action", action) == SETS[2], "all are computed"
    assert switching.partitions.switched == 3


def test_a_frame_that_is_computed_in_groups_keeps_the_split_that_it_began_in() -> None:
    switching = Switching(SETS)
    waiting = frames(4)
    assert switching.split("vision", *waiting) == SETS[0] == switching.partitions.split
    waiting[0].status = Status.RUNNING
    assert switching.split("vision", waiting[0]) == SETS[0], (
        "the others are of no account until it is finished"
    )
    assert switching.split("vision", *frames(1)) == SETS[2]


def test_prefills_of_questions_count() -> None:
    switching = Switching(SETS)
    assert switching.split("vision", *frames(2), Request(Ask())) == SETS[1]
    writing = Request(Ask())
    writing.stage = "decode"
    assert switching.split("vision", *frames(1), writing) == SETS[2]


@pytest.mark.parametrize("sets", [(), SETS[:1]])
def test_without_a_choice_micro_batches_name_no_split(sets: tuple[Split, ...]) -> None:
    switching = Switching(sets)
    assert switching.split("vision", *frames(5)) is None
    assert switching.split("action", Request(Act())) is None
    assert switching.partitions.switched == 0


def test_options_name_what_they_can_be() -> None:
    assert EngineConfig(lanes=ALL_APART, partition="32:100").split == Split(32, 100)
    assert EngineConfig().split is None and EngineConfig(partition=AUTO).split is None
    assert str(Split(32, 100)) == "32:100"
    for wrong in (
        "",
        "32",
        "32:",
        "0:132",
        "32:-1",
        "32 : 100",
        "a:b",
        "32:100:1",
        "1e9:1",
        "٣:٤",
        "9999999:1",
    ):
        with pytest.raises(ValueError, match=r"partition is '.*'"):
            EngineConfig(lanes=ALL_APART, partition=wrong)
    for lanes in (ONE, TEXT_APART):
        with pytest.raises(ValueError, match=f"partition is '32:100', but lanes is '{lanes}', where frames"):
            EngineConfig(lanes=lanes, partition="32:100")
    with pytest.raises(ValueError, match="action_hz is -1"):
        EngineConfig(action_hz=-1.0)
