"""Screens and answers of agents: who runs next, and with how many multiprocessors."""

from __future__ import annotations

import math

import pytest

from agents.rules import (
    LANGUAGE,
    PAUSED,
    SCREENS_FIRST,
    SHARED,
    VISION,
    Beside,
    ChunkedPrefill,
    PrefillFirst,
    Share,
    SideBySide,
    Table,
    best_splits,
    expected_s,
)
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.request import ASK, DECODE, ENCODE, OBSERVE, PREFILL, MicroBatch, Request

NOVA = {ENCODE: Share(24, 12, 4), PREFILL: Share(30, 12, 6)}
"""Of its A6000."""


def make_screen(encoded: bool = False, priority: int = 0) -> Request:
    request = Request(OBSERVE, priority=priority)
    request.begun, request.stage = encoded, PREFILL if encoded else ENCODE
    return request


def make_answers(count: int) -> list[Request]:
    return [Request(ASK) for _ in range(count)]


class TestPrefillFirst:
    def test_screens_go_before_answers_until_too_many_are_open(self) -> None:
        screen, answers = make_screen(), make_answers(6)
        policy = PrefillFirst(5)
        assert policy.next("main", [screen, *answers[:5]], 0.0) == MicroBatch(ENCODE, (screen,), steps=0)
        assert policy.next("main", [screen, *answers], 0.0) == MicroBatch(DECODE, tuple(answers))

    def test_what_is_encoded_is_prefilled_before_another_is_encoded(self) -> None:
        waits, encoded = make_screen(priority=1), make_screen(encoded=True)
        assert PrefillFirst(5).next("main", [waits, encoded], 0.0) == MicroBatch(PREFILL, (encoded,), steps=0)

    def test_screens_are_taken_by_priority_then_in_order(self) -> None:
        first, second, urgent = make_screen(), make_screen(), make_screen(priority=1)
        for ready, chosen in (([first, second, urgent], urgent), ([first, second], first)):
            batch = PrefillFirst(5).next("main", ready, 0.0)
            assert batch is not None and batch.requests == (chosen,)

    def test_limit_nought_ends_an_answer_before_the_next_screen(self) -> None:
        (answer,) = make_answers(1)
        assert PrefillFirst(0).next("main", [make_screen(), answer], 0.0) == MicroBatch(DECODE, (answer,))

    def test_nothing_ready_is_nothing_to_do(self) -> None:
        assert PrefillFirst(5).next("main", [], 0.0) is None

    def test_a_limit_below_nought_is_refused(self) -> None:
        with pytest.raises(ValueError, match="limit is -1"):
            PrefillFirst(-1)


class TestChunkedPrefill:
    def test_every_chunk_decodes_a_token_of_all_open_answers(self) -> None:
        screen, answers = make_screen(encoded=True), make_answers(3)
        chosen = ChunkedPrefill(256).next("main", [screen, *answers], 0.0)
        assert chosen == MicroBatch(PREFILL, (*answers, screen), steps=256)

    def test_nothing_is_decoded_while_a_screen_is_encoded(self) -> None:
        screen = make_screen()
        chosen = ChunkedPrefill(256).next("main", [screen, *make_answers(3)], 0.0)
        assert chosen == MicroBatch(ENCODE, (screen,), steps=0)

    def test_answers_go_on_alone(self) -> None:
        answers = make_answers(3)
        assert ChunkedPrefill(256).next("main", answers, 0.0) == MicroBatch(DECODE, tuple(answers))

    def test_a_chunk_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="chunk is 0"):
            ChunkedPrefill(0)


class TestShare:
    @pytest.mark.parametrize(("pending", "sms"), [(1, (24, 30)), (2, (20, 24)), (4, (12, 12)), (9, (12, 12))])
    def test_it_falls_with_the_screens_that_wait_as_novas_does(
        self, pending: int, sms: tuple[int, int]
    ) -> None:
        assert tuple(NOVA[stage].sms(pending) for stage in (ENCODE, PREFILL)) == sms

    def test_one_that_does_not_fall_is_static(self) -> None:
        assert [Share(32).sms(pending) for pending in (1, 5, 50)] == [32, 32, 32]

    @pytest.mark.parametrize("given", [(0,), (8, 16), (8, -1), (8, 4, -1.0), (8, 4, math.nan)])
    def test_what_cannot_be_is_refused(self, given: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match="least from 0 to most"):
            Share(*given)  # type: ignore[arg-type]


class TestSideBySide:
    def test_decoding_has_what_the_screen_beside_it_leaves(self) -> None:
        policy, screens, answers = SideBySide(NOVA, 84), [make_screen(), make_screen()], make_answers(2)
        assert policy.next(VISION, [*screens, *answers], 0.0) == MicroBatch(
            ENCODE, (screens[0],), steps=0, split=Split(20, 64)
        )
        assert policy.next(LANGUAGE, answers, 0.0) == MicroBatch(DECODE, tuple(answers), split=Split(20, 64))

    def test_a_split_holds_while_what_it_was_chosen_for_runs(self) -> None:
        """A set that grew meanwhile would overlap with the other."""
        policy, (answer,) = SideBySide(NOVA, 84), make_answers(1)
        for pending, sms in ((1, 24), (3, 16)):
            policy.next(VISION, [make_screen() for _ in range(pending)], 0.0)
            batch = policy.next(LANGUAGE, [answer], 0.0)  # the scheduler shows no screens while one runs
            assert batch is not None and batch.split == Split(sms, 84 - sms)

    def test_prefill_has_a_share_of_its_own(self) -> None:
        batch = SideBySide(NOVA, 84).next(VISION, [make_screen(encoded=True)], 0.0)
        assert batch is not None and (batch.stage, batch.split) == (PREFILL, Split(30, 54))

    def test_decoding_alone_has_the_whole_gpu(self) -> None:
        policy, screen, answers = SideBySide(NOVA, 84), make_screen(), make_answers(1)
        begun = policy.next(VISION, [screen], 0.0)
        assert begun is not None
        policy.ran(begun, 0.1)
        assert policy.next(VISION, answers, 0.0) is None
        assert policy.next(LANGUAGE, answers, 0.0) == MicroBatch(DECODE, tuple(answers))

    def test_decoding_leaves_room_to_a_screen_that_is_about_to_begin(self) -> None:
        policy, screen, answers = SideBySide(NOVA, 84), make_screen(), make_answers(1)
        begun = policy.next(VISION, [screen], 0.0)
        assert begun is not None
        policy.ran(begun, 0.1)
        batch = policy.next(LANGUAGE, [make_screen(encoded=True), *answers], 0.0)
        assert batch is not None and batch.split == Split(24, 60)

    def test_an_answer_that_ran_ends_no_screen(self) -> None:
        policy, answers = SideBySide(NOVA, 84), make_answers(1)
        policy.next(VISION, [make_screen()], 0.0)
        policy.ran(MicroBatch(DECODE, tuple(answers)), 0.01)
        batch = policy.next(LANGUAGE, answers, 0.0)
        assert batch is not None and batch.split == Split(24, 60)

    def test_two_streams_divide_nothing(self) -> None:
        policy, answers = SideBySide(), make_answers(1)
        batches = [policy.next(VISION, [make_screen()], 0.0), policy.next(LANGUAGE, answers, 0.0)]
        assert [batch is not None and batch.split for batch in batches] == [None, None]

    def test_at_none_left_the_gpu_is_not_divided(self) -> None:
        shares = {stage: Share(16, 0, 8) for stage in (ENCODE, PREFILL)}
        policy = SideBySide(shares, 132)
        for pending, split in ((2, Split(8, 124)), (3, None), (9, None)):
            batch = policy.next(VISION, [make_screen() for _ in range(pending)], 0.0)
            assert batch is not None and batch.split == split

    def test_a_share_of_none_never_divides(self) -> None:
        policy = SideBySide({ENCODE: Share(16), PREFILL: Share(0, 0)}, 132)
        for encoded, split in ((False, Split(16, 116)), (True, None)):
            batch = policy.next(VISION, [make_screen(encoded)], 0.0)
            assert batch is not None and batch.split == split

    def test_a_share_of_everything_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a share is 30 of 24 multiprocessors"):
            SideBySide(NOVA, 24)

    def test_a_share_of_one_stage_alone_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"of \['encode'\]"):
            SideBySide({ENCODE: Share(8)})


def by_table(encode: tuple[tuple[int, ...], ...], prefill: tuple[tuple[int, ...], ...]) -> SideBySide:
    return SideBySide({ENCODE: Table(encode), PREFILL: Table(prefill)}, 132)


class TestTable:
    def test_it_is_by_screens_and_answers_and_its_last_holds_for_more(self) -> None:
        table = Table(((PAUSED, 16, 32), (PAUSED, SHARED, 16)))
        found = [[table.sms(screens, answers) for answers in (0, 1, 2, 9)] for screens in (1, 2, 7)]
        assert found == [[PAUSED, 16, 32, 32], [PAUSED, SHARED, 16, 16], [PAUSED, SHARED, 16, 16]]
        assert table.largest == 32

    def test_answers_are_counted_though_they_run_in_the_other_lane(self) -> None:
        """The scheduler shows a lane no requests of a kind that the other runs."""
        policy, screen, answers = by_table(((8, 16, 24, 32),), ((SHARED,),)), make_screen(), make_answers(3)
        for ended, sms in ((0, 32), (1, 24), (2, 8)):
            for answer in answers[:ended]:
                answer.finished = True
            batch = policy.next(LANGUAGE, answers, 0.0)
            assert batch is not None
            policy.ran(batch, 0.01)
            answers = answers[ended:]
            chosen = policy.next(VISION, [screen], 0.0)
            assert chosen is not None and chosen.split == Split(sms, 132 - sms)

    def test_a_screen_that_is_prefilled_is_one_more_answer(self) -> None:
        policy = by_table(((SHARED, 16),), ((SHARED,),))
        begun = policy.next(VISION, [make_screen(encoded=True)], 0.0)
        assert begun is not None
        policy.ran(begun, 0.05)
        batch = policy.next(VISION, [make_screen()], 0.0)
        assert batch is not None and batch.split == Split(16, 116)

    def test_answers_pause_until_the_stage_ends(self) -> None:
        policy, screen, answers = by_table(((PAUSED,),), ((16,),)), make_screen(), make_answers(2)
        encode = policy.next(VISION, [screen, *answers], 0.0)
        assert encode is not None and encode.split is None
        assert policy.next(LANGUAGE, answers, 0.0) is None
        assert policy.wake_s(answers, 0.0) == math.inf, "the end of the stage wakes the lane"
        policy.ran(encode, 0.1)
        encoded = make_screen(encoded=True)
        assert policy.next(LANGUAGE, [encoded, *answers], 0.1) is None, "prefill may pause them, too"
        assert 0.1 < policy.wake_s(answers, 0.1) < 0.11, "nobody else tells when it has begun"
        prefill = policy.next(VISION, [encoded, *answers], 0.1)
        assert prefill is not None and prefill.split == Split(16, 116)
        assert policy.next(LANGUAGE, answers, 0.1) == MicroBatch(
            "decode", tuple(answers), split=Split(16, 116)
        )
        assert policy.wake_s(answers, 0.1) == math.inf

    def test_answers_that_paused_go_on_when_no_screen_is_left(self) -> None:
        policy, answers = by_table(((PAUSED,),), ((PAUSED,),)), make_answers(2)
        prefill = policy.next(VISION, [make_screen(encoded=True)], 0.0)
        assert prefill is not None
        policy.ran(prefill, 0.05)
        assert policy.next(LANGUAGE, answers, 0.05) == MicroBatch(DECODE, tuple(answers))

    def test_a_screen_may_be_more_urgent_on_the_whole_gpu(self) -> None:
        policy, answers = by_table(((SCREENS_FIRST,),), ((SHARED,),)), make_answers(1)
        for lane, ready in ((VISION, [make_screen()]), (LANGUAGE, answers)):
            batch = policy.next(lane, ready, 0.0)
            assert batch is not None and batch.split == Split(0, 132)

    @pytest.mark.parametrize("rows", [(), ((),), ((PAUSED - 1,),)])
    def test_what_cannot_be_is_refused(self, rows: tuple[tuple[int, ...], ...]) -> None:
        with pytest.raises(ValueError, match="give a row for each number of screens"):
            Table(rows)

    def test_all_of_the_gpu_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a share is 132 of 132 multiprocessors"):
            by_table(((132,),), ((SHARED,),))


def test_the_expected_latency_is_equation_1() -> None:
    encode, prefill = Beside(0.9, 0.04, 9.0, 9.0), Beside(9.0, 9.0, 0.3, 0.08)
    assert expected_s(encode, prefill, 50) == pytest.approx(0.9 + 0.3 + (0.75 * 0.04 + 0.25 * 0.08) * 50)


def test_the_best_splits_are_found_among_all_pairs() -> None:
    measured = {
        8: Beside(1.0, 0.20, 0.30, 0.30),
        16: Beside(1.1, 0.05, 0.35, 0.20),
        32: Beside(2.5, 0.04, 0.40, 0.05),
    }
    pairs = {(a, b): expected_s(measured[a], measured[b], 50) for a in measured for b in measured}
    assert best_splits(measured, 50) == min(pairs, key=pairs.__getitem__) == (16, 32)
    with pytest.raises(ValueError, match="no split was measured"):
        best_splits({}, 50)


def test_durations_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prefill_s is 0\.0"):
        Beside(1.0, 1.0, 0.0, 1.0)
