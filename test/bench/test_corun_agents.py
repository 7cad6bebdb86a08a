"""Requests of agents through the product's scheduler: in simulated time, and with a tiny model."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator

import corun
import numpy as np
import pytest
import torch
from agent_durations import DURATIONS

from agents.captured import Captured
from agents.durations import Durations, read
from agents.measured import measure
from agents.model import TINY, AgentModel
from agents.planning import Chain, of_shares, prefill_first
from agents.runner import AgentRunner
from agents.schedulers import (
    ADAPTIVE,
    CHUNKED,
    FIFO,
    LANES,
    PLANNED,
    PREFILL_FIRST,
    STATIC,
    TWO_STREAMS,
    make,
)
from agents.simulation import Simulation
from agents.tuning import Settings, adaptive, tuned
from agents.workload import Agents, Arrival, Served, at_once, figures, mg1_s, poisson, same_s, within
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.policies.agents import PAUSED, SCREENS_FIRST, SHARED, Share, Table
from vla_accel_ros.engine.request import ASK, DECODE, ENCODE, OBSERVE, PREFILL, MicroBatch, Request
from vla_accel_ros.engine.scheduling.scheduler import Scheduler

PROMPT, CHUNK, TOKENS = 64, 16, (2, 6)

PAUSING = Table(((PAUSED, 16, 16, 32), (PAUSED, PAUSED, SCREENS_FIRST, 8, SHARED)))
"""Of everything something."""

SETTINGS = Settings(
    limit=5,
    shares={
        STATIC: {ENCODE: Share(32), PREFILL: Share(32)},
        ADAPTIVE: {ENCODE: Share(32, 8, 8), PREFILL: Share(32, 8, 8)},
        PLANNED: {ENCODE: PAUSING, PREFILL: PAUSING},
    },
    expected_s={},
)

COUNT, SLOTS = 2000, 16
"""Requests that a simulation of long queues has."""


def simulated(name: str, slots: int = SLOTS) -> Simulation:
    return Simulation(make(name, SETTINGS, CHUNK, DURATIONS.sms), LANES[name], DURATIONS, PROMPT, slots)


@functools.cache
def served_by(name: str, rate_hz: float, count: int) -> tuple[list[Served], dict[int, int]]:
    """Requests that came at random, and steps by their rows: what is looked at twice is simulated once."""
    simulation = simulated(name)
    served = simulation.run(poisson(rate_hz, count, seed=1, tokens=TOKENS))
    assert simulation.pool.free == simulation.pool.slots
    return served, dict(simulation.runner.steps)


def whole_hz(load: float) -> float:
    """The rate at which requests one after another take that share of the time."""
    return load / (DURATIONS.front_s() + (sum(TOKENS) / 2 - 1) * DURATIONS.decode_s[1])


def requests_of(simulation: Simulation, want: str) -> Iterator[tuple[float, MicroBatch]]:
    for when_s, _, batch in simulation.order:
        if batch.requests[-1].want == want:
            yield when_s, batch


class TestSimulated:
    @pytest.mark.parametrize(
        ("name", "rate_hz", "count"),
        [(FIFO, whole_hz(0.7), COUNT), *((name, 4.0, COUNT) for name in (TWO_STREAMS, STATIC))]
        + [(name, 3.0, 1000) for name in (PREFILL_FIRST, CHUNKED, ADAPTIVE, PLANNED)],
    )
    def test_thousands_of_requests_are_answered_in_order_within_their_room(
        self, name: str, rate_hz: float, count: int
    ) -> None:
        served, steps = served_by(name, rate_hz, count)
        arrivals = poisson(rate_hz, count, seed=1, tokens=TOKENS)
        assert [one.came_s for one in served] == [one.at_s for one in arrivals]
        assert not any(one.lost for one in served)
        begun = [one.began_s for one in served]
        assert begun == sorted(begun), "screens are taken in the order in which they came"
        assert all(one.came_s <= one.began_s < one.prefilled_s < one.ended_s for one in served)
        rows = sum(rows * times for rows, times in steps.items())
        assert rows == sum(one.tokens - 1 for one in served), "the first token is the prefill's"
        assert max(steps) <= SLOTS

    @pytest.mark.parametrize("name", LANES)
    def test_a_screen_is_prefilled_before_the_next_is_encoded(self, name: str) -> None:
        simulation = simulated(name)
        simulation.run(poisson(5.0, 200, seed=2, tokens=TOKENS))
        begun: Request | None = None
        for _, batch in requests_of(simulation, OBSERVE):
            (*_, request) = batch.requests
            if batch.stage == PREFILL:
                assert request is begun
            else:
                begun = request

    def test_no_more_answers_wait_than_the_limit_before_a_screen_goes_first(self) -> None:
        simulation = simulated(PREFILL_FIRST)
        simulation.run(poisson(6.0, 500, seed=3, tokens=TOKENS))
        assert max(simulation.runner.steps) == 6, "a sixth that is open is decoded before the next screen"

    @pytest.mark.parametrize("name", [STATIC, ADAPTIVE])
    def test_what_runs_at_once_divides_the_gpu_in_the_same_way(self, name: str) -> None:
        simulation = simulated(name)
        served = simulation.run(poisson(7.0, 500, seed=4, tokens=TOKENS))
        splits, beside, fronts = {0}, 0, list(requests_of(simulation, OBSERVE))
        for when_s, batch in requests_of(simulation, ASK):
            if beside < 200 and any(one.began_s < when_s < one.prefilled_s for one in served):
                beside += 1
                front = next(one for began_s, one in reversed(fronts) if began_s <= when_s)
                assert batch.split == front.split is not None
            splits.add(0 if batch.split is None else batch.split.actions)
        assert beside == 200
        assert splits == ({0, 32} if name == STATIC else {0, 8, 16, 24, 32})

    @pytest.mark.parametrize("name", LANES)
    def test_requests_wait_for_room(self, name: str) -> None:
        simulation = simulated(name, slots=2)
        served = simulation.run(poisson(8.0, 200, seed=5, tokens=TOKENS))
        assert not any(one.lost for one in served) and max(simulation.runner.steps) <= 2

    @pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
    def test_whole_requests_one_after_another_wait_as_an_mg1_queue_says(self, load: float) -> None:
        rate_hz = whole_hz(load)
        found = figures(served_by(FIFO, rate_hz, COUNT)[0], rate_hz, whole=True)
        assert found["queue_s"] == pytest.approx(found["queue_mg1_s"], rel=0.15)
        assert found["queue_s"] == pytest.approx(found["queue_same_s"], rel=1e-3)

    @pytest.mark.parametrize("name", [TWO_STREAMS, STATIC])
    @pytest.mark.parametrize("rate_hz", [2.0, 4.0])
    def test_screens_beside_answers_wait_as_an_mg1_queue_says(self, name: str, rate_hz: float) -> None:
        found = figures(served_by(name, rate_hz, COUNT)[0], rate_hz)
        assert (found["utilisation"] or 1.0) < 0.9
        assert found["queue_s"] == pytest.approx(found["queue_mg1_s"], rel=0.15)

    def test_what_runs_beside_makes_slower_only_while_it_does(self) -> None:
        """Two requests: the second's screen is beside the first's answer for a while."""
        simulation = simulated(TWO_STREAMS)
        first, second = simulation.run([Arrival(0.0, 3), Arrival(0.11, 1)])
        assert first.prefilled_s == pytest.approx(0.11)
        steps_s = 2 * 0.0101 * 0.040 / 0.0104  # two steps of one answer, each as much longer as four are
        assert first.ended_s == pytest.approx(0.11 + steps_s)
        alone = 1 - steps_s / 0.10
        assert second.ended_s == pytest.approx(first.ended_s + alone * 0.08 + 0.03)

    def test_a_policy_that_runs_nothing_is_found_out(self) -> None:
        class Idle:
            def next(self, *_: object) -> None:
                return None

            def ran(self, *_: object) -> None:
                pass

            def wake_s(self, *_: object) -> float:
                return math.inf

        simulation = Simulation(Idle(), ("main",), DURATIONS, PROMPT)
        with pytest.raises(RuntimeError, match="1 requests wait, and the policy runs none of them"):
            simulation.run([Arrival(0.0, 3)])

    def test_what_a_full_queue_refuses_is_counted(self) -> None:
        simulation = simulated(FIFO)
        found = figures(simulation.run([Arrival(0.0, 3)] * 300), 1.0)
        assert (found["requests"], found["lost"]) == (300, 44)


class TestTheory:
    def test_mg1_is_pollaczek_khinchine(self) -> None:
        assert mg1_s(0.5, [1.0]) == pytest.approx(0.5)  # M/D/1 at a half
        assert mg1_s(0.5, [0.5, 1.5]) == pytest.approx(0.5 * 1.25 / (2 * 0.5))
        assert mg1_s(2.0, [0.5]) == math.inf

    def test_the_same_arrivals_are_served_one_after_another(self) -> None:
        assert same_s([0.0, 1.0, 5.0], [2.0, 3.0, 1.0]) == pytest.approx((0 + 1 + 0) / 3)

    def test_arrivals_are_those_of_their_seed_and_rate(self) -> None:
        arrivals = poisson(4.0, 10_000, seed=3)
        assert arrivals == poisson(4.0, 10_000, seed=3) != poisson(4.0, 10_000, seed=4)
        gaps = np.diff([one.at_s for one in arrivals])
        assert gaps.mean() == pytest.approx(0.25, rel=0.03) and gaps.std() == pytest.approx(0.25, rel=0.05)
        assert {one.tokens for one in arrivals} == set(range(30, 81))
        assert all(one.at_s < 10.0 for one in within(arrivals, 10.0)) and len(within(arrivals, 1e-9)) == 1
        with pytest.raises(ValueError, match=r"the rate of arrivals is 0\.0; give requests a second"):
            poisson(0.0, 1)
        assert {one.at_s for one in at_once(9)} == {0.0} and len(at_once(9)) == 9


class TestDurations:
    def test_they_are_read_as_they_were_written(self) -> None:
        written = DURATIONS.document()
        again = read(json.loads(json.dumps(written)))
        assert again.document() == written and again.beside == DURATIONS.beside

    def test_what_they_are_not_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"durations are not as bench/corun\.py writes them"):
            read({"encode_ms": 1.0})

    def test_a_gpu_that_is_not_divided_takes_its_time_only_beside_others(self) -> None:
        screen = MicroBatch(ENCODE, (Request(OBSERVE),), split=Split(0, 132))
        answer = MicroBatch(DECODE, (Request(ASK),) * 4, split=Split(0, 132))
        assert DURATIONS.takes_s(screen, None) == 0.08 and DURATIONS.takes_s(screen, answer) == 0.085
        assert DURATIONS.takes_s(answer, screen) == pytest.approx(0.060)
        divided = MicroBatch(ENCODE, (Request(OBSERVE),), split=Split(16, 116))
        assert DURATIONS.takes_s(divided, None) == 0.10


class TestTuning:
    @pytest.mark.parametrize("name", [TWO_STREAMS, STATIC, ADAPTIVE, PLANNED, PREFILL_FIRST])
    @pytest.mark.parametrize(("rate_hz", "count"), [(2.5, 500), (5.0, COUNT)])
    def test_the_chain_expects_what_is_simulated(self, name: str, rate_hz: float, count: int) -> None:
        """But for the lengths of answers, which vary less than the chain has them."""
        tokens = (10, 30)
        chain = Chain(DURATIONS, rate_hz, sum(tokens) / 2, 16)
        both = {ENCODE: Share(0, 0), PREFILL: Share(0, 0)}
        rule = of_shares(SETTINGS.shares.get(name, both))
        expected_s = chain.latency_s(prefill_first(SETTINGS.limit) if name == PREFILL_FIRST else rule)
        found = figures(simulated(name).run(poisson(rate_hz, count, 8, tokens)), rate_hz)
        assert expected_s == pytest.approx(found["average_s"], rel=0.1)

    @pytest.mark.parametrize("load", [0.4, 0.7, None])
    def test_no_rule_is_better_than_the_planned(self, load: float | None) -> None:
        expected_s = tuned(DURATIONS, load, TOKENS, 4).expected_s
        others = {TWO_STREAMS, STATIC, ADAPTIVE, PREFILL_FIRST}
        assert expected_s.keys() == {*others, PLANNED}
        assert expected_s[PLANNED] < min(expected_s[name] for name in (TWO_STREAMS, STATIC, ADAPTIVE))

    def test_a_table_is_as_good_as_it_was_planned(self) -> None:
        chain = Chain(DURATIONS, 6.0, 4.0, 8)
        best_s, tables = chain.best()
        assert chain.latency_s(of_shares(tables)) == pytest.approx(best_s, rel=1e-3)

    def test_decoding_has_more_the_more_answers_are_open_and_less_the_more_screens_wait(self) -> None:
        _, tables = Chain(DURATIONS, 6.0, 30.0, 16).best()
        order = {PAUSED: 0, SCREENS_FIRST: 1, SHARED: 2, 8: 3, 16: 4, 32: 5}
        rows = [[order[mode] for mode in row] for row in tables[ENCODE].rows]
        assert rows[0][0] == order[PAUSED], "there is nothing to decode"
        assert np.mean(rows[0]) > np.mean(rows[-1]) and rows[0][-1] > rows[0][1]

    def test_settings_are_a_load_s(self) -> None:
        light, heavy = (tuned(DURATIONS, load, TOKENS, 4) for load in (0.3, 0.9))
        assert light.shares[PLANNED] != heavy.shares[PLANNED]
        assert json.loads(json.dumps(heavy.document()))["limit"] == heavy.limit

    def test_equation_5_is_tried_between_every_two_splits(self) -> None:
        assert len(adaptive(DURATIONS.splits)) == 18

    def test_a_gpu_that_is_not_divided_has_nothing_to_choose_but_a_pause(self) -> None:
        alone = Durations(0.1, 0.1, {4: 0.1}, {0: 0.1}, {SHARED: DURATIONS.beside[SHARED]})
        shares = tuned(alone, 0.5, TOKENS, 4).shares
        assert shares.keys() == {PLANNED} and alone.best(5) == {}
        table = shares[PLANNED][ENCODE]
        assert {table.sms(screens, answers) for screens in (1, 9) for answers in range(5)} <= {SHARED, PAUSED}


def said(captured: Captured, name: str, lengths: list[int]) -> list[tuple[int, ...]]:
    """The answers to screens that come all at once."""
    cuda = captured.model.device.type == "cuda"
    streams = {lane: torch.cuda.Stream(captured.model.device) for lane in LANES[name] if cuda}
    lanes = [corun.lane_on(lane, streams) for lane in LANES[name]]
    captured.encoded = 0
    runner = AgentRunner(captured.pool, TINY.prompt, captured)
    scheduler = Scheduler(runner, make(name, SETTINGS, captured.chunk, 132), lanes=lanes)
    served = corun.serve(scheduler, [Arrival(0.0, tokens) for tokens in lengths])
    assert not [one.lost for one in served if one.lost]
    if cuda:  # what is read here was written in streams of lanes
        torch.cuda.synchronize()
    assert captured.pool.free == captured.pool.slots and captured.answering == 0
    return [one.said for one in served]


LENGTHS = [3, 12, 5, 1, 7, 12, 2, 9, 4]


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    """What is said one after another, on a CPU."""
    model = AgentModel(TINY, torch.device("cpu"), torch.float32)
    found = said(Captured(model, slots=1, chunk=8), FIFO, LENGTHS)
    assert [len(answer) for answer in found] == LENGTHS
    assert len({answer[0] for answer in found}) > 1, "else screens that were mixed up would not be seen"
    return found


@pytest.mark.usefixtures("one_thread")
class TestTinyModel:
    @pytest.mark.parametrize("name", LANES)
    @pytest.mark.parametrize("slots", [3, 16])
    def test_every_scheduler_says_the_same(self, alone: list[tuple[int, ...]], name: str, slots: int) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        assert said(Captured(model, slots=slots, chunk=8), name, LENGTHS) == alone

    def test_a_prompt_in_chunks_is_the_same_prompt(self) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        captured = Captured(model, slots=2, chunk=8)
        assert TINY.prompt % 8, "the last chunk is not full"
        keys = []
        for tokens in (0, 8):
            captured.encoded = 0
            captured.encode(1, None)
            for begin in range(0, TINY.prompt, tokens or TINY.prompt):
                captured.prefill(1, begin, tokens, (), None)
            keys.append((captured.open(1, None), captured.pool.k[1, :, :, : TINY.prompt].clone()))
        assert keys[0][0] == keys[1][0]
        torch.testing.assert_close(keys[0][1], keys[1][1], rtol=1e-4, atol=1e-5)

    def test_a_step_leaves_slots_alone_that_have_no_answer(self) -> None:
        """Neither a prompt that is prefilled beside it nor one whose answer has ended is written to."""
        captured = Captured(AgentModel(TINY, torch.device("cpu"), torch.float32), slots=4, chunk=8)
        for slot in (2, 3):
            captured.encode(slot, None)
            captured.prefill(slot, 0, 0, (), None)
        captured.open(3, None)
        self._steps_leave(captured, answering=3, other=2)
        captured.close(3)
        captured.open(2, None)
        self._steps_leave(captured, answering=2, other=3)

    @staticmethod
    def _steps_leave(captured: Captured, answering: int, other: int) -> None:
        """All of another slot but the place that nobody reads."""
        kept = captured.pool.k[other, :, :, :-1].clone()
        captured.decode([answering], None)
        captured.prefill(0, 0, 8, [answering], None)
        assert torch.equal(captured.pool.k[other, :, :, :-1], kept)

    def test_what_is_not_captured_is_refused(self) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        with pytest.raises(ValueError, match="a pool of 33 slots was asked for; give at most 32"):
            Captured(model, slots=33)
        with pytest.raises(ValueError, match="a chunk of 4 tokens was asked for; 8 are captured"):
            Captured(model, slots=2, chunk=8).prefill(0, 0, 4, (), None)

    def test_an_answer_without_a_screen_is_refused(self) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        captured = Captured(model, slots=2, chunk=8)
        scheduler = Scheduler(AgentRunner(captured.pool, TINY.prompt, captured), make(FIFO, SETTINGS, 8))
        with pytest.raises(ValueError, match="a screen, or the answer to a prefix, not to ask"):
            scheduler.submit(Request(ASK))

    def test_screens_that_fail_or_are_cancelled_give_their_room_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        captured = Captured(model, slots=2, chunk=8)
        scheduler = Scheduler(AgentRunner(captured.pool, TINY.prompt, captured), make(FIFO, SETTINGS, 8))
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


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*LANES])
def test_captured_stages_on_parts_of_a_gpu_say_what_a_cpu_says(
    alone: list[tuple[int, ...]], name: str
) -> None:
    model = AgentModel(TINY, torch.device("cpu"), torch.float32).to(torch.device("cuda"))
    captured = Captured(model, slots=16, splits=(8, 16, 32), chunk=8)
    assert captured.splits == (8, 16, 32)
    assert said(captured, name, LENGTHS) == alone


@pytest.mark.gpu
def test_stages_are_timed_alone_and_beside() -> None:
    model = AgentModel(TINY, torch.device("cuda"), torch.bfloat16)
    durations = measure(Captured(model, slots=4, splits=(16, 32), chunk=8))
    assert durations.splits == (16, 32) and durations.beside.keys() == {SHARED, SCREENS_FIRST, 16, 32}
    assert read(durations.document()).sms == durations.sms > 32
