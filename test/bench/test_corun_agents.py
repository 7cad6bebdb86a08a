"""Requests of agents through the product's scheduler, in simulated time, and what the queue theory says."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from agent_durations import DURATIONS, SETTINGS

from agents.durations import Durations, read
from agents.planning import Chain, of_shares, prefill_first
from agents.rules import PAUSED, SCREENS_FIRST, SHARED, Share
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
from agents.tuning import adaptive, tuned
from agents.workload import Arrival, Served, at_once, figures, mg1_s, poisson, same_s, within
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.request import ASK, DECODE, ENCODE, OBSERVE, PREFILL, MicroBatch, Request

PROMPT, CHUNK, TOKENS = 64, 16, (2, 6)

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
