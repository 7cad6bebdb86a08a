"""Requests of agents: every scheduler gives the same answers; rules and equations are Nova's."""

from __future__ import annotations

import corun
import pytest
import torch
from corun import (
    LANES,
    LANGUAGE,
    TINY,
    VISION,
    AgentModel,
    AgentRunner,
    Agents,
    Arrival,
    Beside,
    Captured,
    ChunkedPrefill,
    Durations,
    PrefillFirst,
    Share,
    SideBySide,
    best_splits,
    expected_s,
    make,
    serve,
)

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.request import DECODE, ENCODE, PREFILL, Ask, MicroBatch, Observe, Request, Status
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.scheduler import Scheduler

LENGTHS = [3, 12, 5, 1, 7, 12, 2, 9, 4]
NOVA = {ENCODE: Share(24, 12, 4), PREFILL: Share(30, 12, 6)}
"""Of its A6000."""
BESIDE = {
    8: Beside(1.0, 0.20, 0.30, 0.30),
    16: Beside(1.1, 0.05, 0.35, 0.20),
    32: Beside(2.5, 0.04, 0.40, 0.05),
}


def captured_on(
    device: str, slots: int = 2, splits: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> Captured:
    return Captured(AgentModel(TINY, torch.device(device), dtype), slots, splits, chunk=8)


def answers(captured: Captured, name: str) -> list[tuple[int, ...]]:
    """The answers to screens that come all at once."""
    captured.encoded = 0
    policy = make(name, Durations(0.1, 0.1, 0.1, BESIDE, 132), (1, 12), captured.chunk)
    requests, _ = serve(captured, name, policy, [Arrival(0.0, length) for length in LENGTHS])
    assert not [served.lost for served in requests if served.lost]
    assert captured.pool.free == captured.pool.slots
    return [served.tokens for served in requests]


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    """Answers of requests that are served one after another, on a CPU."""
    result = answers(captured_on("cpu", slots=1), corun.FIFO)
    assert [len(tokens) for tokens in result] == LENGTHS
    assert len({tokens[0] for tokens in result}) > 1, "else screens that were mixed up would not be noticed"
    return result


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("slots", [3, 16])
def test_every_scheduler_gives_the_same_answers(alone: list[tuple[int, ...]], name: str, slots: int) -> None:
    assert answers(captured_on("cpu", slots), name) == alone


@pytest.mark.usefixtures("one_thread")
def test_prompt_in_chunks_is_the_same_prompt() -> None:
    captured, runs = captured_on("cpu"), []
    assert TINY.prompt % 8, "the last chunk is not full"
    for tokens in (0, 8):
        captured.encoded = 0
        captured.encode(1, None)
        for begin in range(0, TINY.prompt, tokens or TINY.prompt):
            captured.prefill(1, begin, tokens, (), None)
        runs.append((captured.open(1, None), captured.pool.k[1, :, :, : TINY.prompt].clone()))
    assert runs[0][0] == runs[1][0]
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_step_leaves_slots_without_an_answer_alone() -> None:
    captured = captured_on("cpu", slots=4)
    for slot in (2, 3):
        captured.encode(slot, None)
        captured.prefill(slot, 0, 0, (), None)
    captured.open(3, None)
    keys = captured.pool.k[2, :, :, :-1].clone()
    captured.decode([3], None)
    captured.prefill(0, 0, 8, [3], None)
    assert torch.equal(captured.pool.k[2, :, :, :-1], keys)


@pytest.mark.usefixtures("one_thread")
def test_screens_that_fail_or_are_cancelled_give_their_slots_back(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = captured_on("cpu")
    scheduler = Scheduler(AgentRunner(captured), Rules(PrefillFirst(0), text=False))
    agents = Agents(scheduler)
    failing = agents.submit(Arrival(0.0, 3), 0.0)

    def fail(slot: int, split: Split | None) -> None:
        raise RuntimeError("no screen")

    with monkeypatch.context() as patch:
        patch.setattr(captured, "encode", fail)
        scheduler.step()
    cancelled = agents.submit(Arrival(0.0, 3), 0.0)
    scheduler.step()
    assert captured.pool.free == 1
    scheduler.cancel(*scheduler.requests)
    assert "no screen" in failing.lost and "cancelled" in cancelled.lost
    assert captured.pool.free == 2 and agents.idle.is_set()


def screen(encoded: bool = False, priority: int = 0) -> Request:
    request = Request(Observe(), priority=priority)
    if encoded:
        request.status, request.stage = Status.RUNNING, PREFILL
    return request


def test_screens_go_before_answers_until_too_many_are_open() -> None:
    first, asks = screen(), [Request(Ask()) for _ in range(6)]
    rule = PrefillFirst(5)
    assert rule.next("main", [first, *asks[:5]], 0.0) == MicroBatch(ENCODE, (first,), steps=0)
    assert rule.next("main", [first, *asks], 0.0) == MicroBatch(DECODE, tuple(asks))
    encoded, urgent = screen(encoded=True), screen(priority=1)
    for ready, expected in (([urgent, encoded], encoded), ([first, urgent], urgent)):
        batch = rule.next("main", ready, 0.0)
        assert batch is not None and batch.requests == (expected,)


def test_every_chunk_decodes_a_token_of_all_open_answers() -> None:
    encoded, asks = screen(encoded=True), [Request(Ask()) for _ in range(2)]
    expected = MicroBatch(PREFILL, (*asks, encoded), steps=16)
    assert ChunkedPrefill(16).next("main", [*asks, encoded], 0.0) == expected


@pytest.mark.parametrize(("screens", "sms"), [(1, (24, 30)), (2, (20, 24)), (4, (12, 12)), (9, (12, 12))])
def test_share_falls_with_the_screens_that_wait_by_equation_5(screens: int, sms: tuple[int, int]) -> None:
    assert (NOVA[ENCODE].sms(screens), NOVA[PREFILL].sms(screens)) == sms


def test_split_holds_while_its_stage_runs_and_decoding_alone_has_the_whole_gpu() -> None:
    rule, ask = SideBySide(NOVA, 84), Request(Ask())
    for screens, sms in ((1, 24), (3, 16)):
        stage = rule.next(VISION, [screen() for _ in range(screens)], 0.0)
        assert stage is not None and stage.split == Split(sms, 84 - sms)
        assert rule.next(LANGUAGE, [ask], 0.0) == MicroBatch(DECODE, (ask,), split=stage.split)
        rule.ran(stage, 0.1)
    assert rule.next(LANGUAGE, [ask], 0.0) == MicroBatch(DECODE, (ask,))
    prefill = rule.next(VISION, [screen(encoded=True)], 0.0)
    assert prefill is not None and (prefill.stage, prefill.split) == (PREFILL, Split(30, 54))


def test_expected_latency_is_equation_1_and_the_best_splits_have_the_least() -> None:
    encode, prefill = Beside(0.9, 0.04, 9.0, 9.0), Beside(9.0, 9.0, 0.3, 0.08)
    assert expected_s(encode, prefill, 50) == pytest.approx(0.9 + 0.3 + (0.75 * 0.04 + 0.25 * 0.08) * 50)
    pairs = {(a, b): expected_s(BESIDE[a], BESIDE[b], 50) for a in BESIDE for b in BESIDE}
    assert best_splits(BESIDE, 50) == min(pairs, key=pairs.__getitem__) == (16, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LANES)
def test_captured_stages_on_parts_of_a_gpu_give_the_answers_of_one_after_another(name: str) -> None:
    captured = captured_on("cuda", slots=16, splits=(8, 16, 32))
    assert captured.splits == (8, 16, 32)
    assert answers(captured, name) == answers(captured_on("cuda", slots=1), corun.FIFO)


@pytest.mark.gpu
def test_stages_are_timed_alone_and_beside() -> None:
    captured = captured_on("cuda", slots=4, splits=(16, 32), dtype=torch.bfloat16)
    assert corun.time_stages(captured).beside.keys() == {16, 32}
