"""The simulator against queueing theory, and what it must not lose or do twice."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from fleet_builders import EDGE, make_replica

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES, find
from vla_accel_ros.fleet.rules.rule import InOrder, ReplicaProfile
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, closed_fleet, figures, open_loop
from vla_accel_ros.fleet.simulator.simulation import Settings, Simulation
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, HORIZONS, WORKLOADS, Script

NAMES = tuple(BUILT_IN[FLEET_RULES])
FIFO = find(FLEET_RULES, "fifo")
NEAR = Settings(link_s=0.0)


class Youngest(InOrder):
    """Tasks that began last go first."""

    def keys(self, ready, now_s):
        return [-request.task.began_s for request in ready]


def waits_s(outcome):
    return np.array([robot.task.first_waited_s for robot in outcome.robots])


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_tasks_of_one_round_wait_as_in_an_m_d_1_queue(load):
    """Mean wait: load * service / (2 * (1 - load)); times between arrivals are as many quantiles of the
    exponential distribution, in random order."""
    count, service_s = 20_000, 1.0
    between_s = -np.log((np.arange(count) + 0.5) / count) * service_s / load
    arrivals_s = np.random.default_rng(2).permutation(between_s).cumsum()
    simulation = Simulation({EDGE: make_replica(1, 0.0, service_s)}, FIFO, NEAR)
    outcome = simulation.open([Script("a", 1, (1,))] * count, arrivals_s.tolist())
    expected_s = load * service_s / (2 * (1 - load))
    assert waits_s(outcome).mean() == pytest.approx(expected_s, rel=0.02)
    assert outcome.busy_s[EDGE] / outcome.ended_s == pytest.approx(load, rel=0.02)
    waited_s = [0.0]
    for between_s in np.diff(arrivals_s):  # Lindley's recursion, of these very arrivals
        waited_s.append(max(0.0, waited_s[-1] + service_s - between_s))
    assert waits_s(outcome) == pytest.approx(np.array(waited_s), abs=1e-6)


def test_one_robot_alone_by_hand():
    """A chunk takes 0.5 s and has 30 actions of 1/30 s, of which it asks for the next with 0.5 s left."""
    simulation = Simulation({EDGE: make_replica(1, 0.0, 0.5)}, FIFO, NEAR)
    (robot,) = simulation.open([Script("a", 75, (30,))], [2.0]).robots
    assert (robot.rounds, robot.stalled_s) == (3, pytest.approx(0.0, abs=1e-9))
    assert [(span.first, span.end) for span in robot.spans] == [(0, 30), (30, 60), (60, 75)]
    assert [span.observed for span in robot.spans] == [0, 15, 45]  # of the chunk, 15 actions are discarded
    assert simulation.outcome.ends_s == [pytest.approx(2.0 + 0.5 + 75 / 30)]
    assert robot.ages_s == pytest.approx([0.5] * 3) and robot.task.waited_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("chunk", "second"), [(60, 60), (50, 56)])
def test_a_chunk_that_comes_early_is_executed_after_the_one_before(chunk, second):
    """The overlap is discarded from the new chunk, whose horizon counts from there, to its end at
    most; it was observed at 6."""
    settings = Settings(lead_s=0.8, link_s=0.0)
    simulation = Simulation({EDGE: make_replica(1, 0.0, 0.5)}, FIFO, settings)
    (robot,) = simulation.open([Script("a", 75, (30,), chunk)], [0.0]).robots
    assert [(span.first, span.end) for span in robot.spans] == [(0, 30), (30, second), (second, 75)]
    assert robot.spans[1].observed == 6


def test_without_lead_it_stands_for_as_long_as_a_chunk_takes():
    settings = Settings(lead_s=0.0, link_s=0.0)
    simulation = Simulation({EDGE: make_replica(1, 0.0, 0.5)}, FIFO, settings)
    (robot,) = simulation.open([Script("a", 75, (30,))], [0.0]).robots
    assert robot.stalled_s == pytest.approx(2 * 0.5) and robot.task.stalled_s == pytest.approx(0.5)
    assert [span.observed for span in robot.spans] == [0, 30, 60]


def test_with_an_elastic_horizon_it_goes_on_instead():
    """Of its first chunk 15 actions beyond the horizon pass until the next is there, which was observed at
    30: it ends at 80, 5 beyond its horizon, and the arm stands for the other 10."""
    settings = Settings(lead_s=0.0, link_s=0.0, elastic=True)
    simulation = Simulation({EDGE: make_replica(1, 0.0, 0.5)}, FIFO, settings)
    outcome = simulation.open([Script("a", 95, (30,))], [0.0])
    (robot,) = outcome.robots
    assert [(span.first, span.end) for span in robot.spans] == [(0, 45), (45, 80), (80, 95)]
    assert robot.stalled_s == pytest.approx(10 / 30) and robot.beyond == 15 + 5
    assert figures(outcome)["beyond"] == pytest.approx(20 / 95)


def test_an_observation_that_went_stale_is_taken_anew():
    """Two ask at once of a replica that takes one: the second is called when it is dispatched, or call_s
    before, while the first is computed; its chunk is there at 2.02, or 0.02 later."""
    for stale_s, call_s, age_s in ((0.1, 0.0, 1.02), (0.1, 0.3, 1.3), (0.1, 5.0, 2.0), (9.0, 0.3, 2.02)):
        settings = Settings(stale_s=stale_s, link_s=0.01, call_s=call_s)
        simulation = Simulation({EDGE: make_replica(1, 0.0, 1.0)}, FIFO, settings)
        outcome = simulation.open([Script("a", 3, (3,))] * 2, [0.0, 0.0])
        assert outcome.robots[1].ages_s == [pytest.approx(age_s)]


def whole(outcome, scripts):
    """Every request is answered once, and every action of every task is executed once, of a chunk that has
    it."""
    assert len(outcome.robots) == len(scripts)
    assert outcome.requests == sum(outcome.batches) == sum(robot.rounds for robot in outcome.robots)
    for robot, end_s in zip(outcome.robots, outcome.ends_s):
        at = 0
        for span in robot.spans:
            assert span.first == at <= span.end and span.observed <= span.first
            assert span.end <= span.observed + robot.script.chunk
            at = span.end
        assert at == robot.script.actions and robot.task.rounds == robot.rounds
        motion_s = robot.script.actions / 30.0
        assert end_s - robot.began_s >= motion_s + robot.stalled_s - 1e-6


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_nothing_is_lost_or_done_twice(workload, policy):
    what = WORKLOADS[workload]
    for seed, horizon in enumerate(HORIZONS):
        drawn = Load.of(what, seed, horizon, tasks=60)
        settings = Settings(elastic=bool(seed), lead_s=None if seed else 0.5)
        replicas = {EDGE: assumed(what), "cloud": assumed(what, 2.0, 0.2)} if seed else {EDGE: assumed(what)}
        whole(open_loop(drawn, find(FLEET_RULES, policy), 2.0, replicas, settings), drawn.scripts)


def test_nothing_is_lost_in_random_fleets():
    chance = random.Random(11)
    for _ in range(300):
        chunk = chance.randint(1, 50)
        scripts = [
            Script(
                chance.choice("abc"),
                chance.randint(1, 200),
                [chance.randint(1, chunk) for _ in range(9)],
                chunk,
            )
            for _ in range(chance.randint(1, 12))
        ]
        settings = Settings(
            lead_s=chance.choice((None, 0.0, 0.3, 5.0)), link_s=chance.choice((0.0, 0.02)),
            stale_s=chance.choice((0.0, 0.1, math.inf)), elastic=chance.random() < 0.5,
        )  # fmt: skip
        replicas = {
            f"r{k}": make_replica(
                chance.randint(1, 4), chance.random(), 0.01 + chance.random(), chance.random() / 4
            )
            for k in range(chance.randint(1, 3))
        }
        simulation = Simulation(replicas, find(FLEET_RULES, chance.choice(NAMES)), settings)
        if chance.random() < 0.5:
            whole(simulation.open(scripts, sorted(chance.uniform(0, 5) for _ in scripts)), scripts)
        else:
            whole(simulation.closed(scripts, chance.randint(1, 12)), scripts)


@pytest.mark.parametrize("policy", NAMES)
def test_the_same_run_comes_out_the_same(policy):
    what = WORKLOADS["mixed_fleet"]
    replicas = {EDGE: assumed(what), "cloud": assumed(what, 2.0, 0.2)}
    runs = [
        figures(open_loop(Load.of(what, 3, DYNAMIC, 80), find(FLEET_RULES, policy), 2.0, replicas))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_policies_do_not_change_what_is_simulated():
    """The profiles that policies learn from are their own."""
    replicas = {EDGE: make_replica(2)}
    before = replicas[EDGE].profile.known()
    Simulation(replicas, find(FLEET_RULES, "aged_srpt")).open([Script("a", 9, (3,))] * 5, [0.0] * 5)
    assert replicas[EDGE].profile.known() == before


def test_a_chunk_that_comes_too_late_is_asked_for_again():
    """A chunk takes 1 s and is of no use after 1.6 s. Of two that ask at once the second is computed for
    nobody, as nobody else waits. Where a third asked at 0.6, it goes first, and the second is dropped."""
    settings, one = Settings(link_s=0.0, within_s=1.6, stale_s=9.0), Script("a", 3, (3,))
    for asked_s, late, ends_s in (
        ([0.0, 0.0], [0, 1], [1.1, 3.1]),
        ([0.0, 0.0, 0.6], [1, 0], [1.1, 2.1, 3.1]),
    ):
        simulation = Simulation({EDGE: make_replica(1, 0.0, 1.0)}, FIFO, settings)
        outcome = simulation.open([one] * len(asked_s), asked_s)
        assert outcome.late == late and outcome.ends_s == pytest.approx(ends_s)


def test_a_replica_is_promised_to_whom_it_called():
    """The youngest task goes first. The replica is free at 1 and calls the one that waits at 0.7; another, of
    0.9, is served after it, or before it where nobody is called ahead."""
    arrivals_s = [0.0, 0.05, 0.9]
    for call_s, order in ((0.3, ["/r0", "/r1", "/r2"]), (0.0, ["/r0", "/r2", "/r1"])):
        settings = Settings(link_s=0.0, call_s=call_s, stale_s=0.1)
        simulation = Simulation({EDGE: make_replica(1, 0.0, 1.0)}, Youngest, settings)
        outcome = simulation.open([Script("a", 3, (3,))] * 3, arrivals_s)
        assert [robot for robot, _ in outcome.served] == order


def test_a_closed_fleet_has_as_many_tasks_at_once_as_robots():
    what = WORKLOADS["libero_pi05"]
    drawn = Load.of(what, 0, tasks=30)
    outcome = closed_fleet(drawn, FIFO, 4, {EDGE: assumed(what)})
    whole(outcome, drawn.scripts)
    spans = [(robot.began_s, end_s) for robot, end_s in zip(outcome.robots, outcome.ends_s)]
    at_once = [sum(began_s <= at_s < end_s for began_s, end_s in spans) for at_s, _ in spans]
    assert max(at_once) == 4 and len({robot.name for robot in outcome.robots}) == 4
    numbers = {robot.name: robot.task.number for robot in outcome.robots}
    assert sum(numbers.values()) == 30 - 4


def test_what_cannot_be_is_refused():
    what = WORKLOADS["libero_pi05"]
    drawn, replicas = Load.of(what, 0, tasks=2), {EDGE: assumed(what)}
    for run in (
        lambda: open_loop(drawn, FIFO, 0.0, replicas),
        lambda: open_loop(drawn, FIFO, math.nan, replicas),
        lambda: closed_fleet(drawn, FIFO, 0, replicas),
        lambda: Settings(lead_s=-1.0),
        lambda: Settings(link_s=math.nan),
        lambda: Settings(link_s=math.inf),
        lambda: Settings(rate_hz=0.0),
        lambda: Simulation({}, FIFO),
    ):
        with pytest.raises(ValueError, match=r"give|positive"):
            run()
    with pytest.raises(ValueError, match="no task ended"):
        figures(Simulation(replicas, FIFO).open([], []))


def test_a_run_that_would_never_end_says_why():
    scripts = [Script("a", 50, (10,))] * 3
    simulation = Simulation({EDGE: make_replica(1, 0.0, 0.1)}, FIFO, Settings(within_s=0.05))
    with pytest.raises(ValueError, match=r"within_s, 0\.05 s"):
        simulation.closed(scripts, robots=2)
    unknown = Simulation({EDGE: ReplicaProfile(1, Profile())}, FIFO)
    with pytest.raises(ValueError, match=r"replica edge .*'serve'"):
        unknown.closed(scripts, robots=2)


def closed_figures(policy, per_robot, robots=50, seed=0):
    what = WORKLOADS["libero_pi05"]
    drawn = Load.of(what, seed, tasks=per_robot * robots)
    return figures(closed_fleet(drawn, find(FLEET_RULES, policy), robots, {EDGE: assumed(what)}))


@pytest.mark.parametrize("policy", ["fifo", "kairos", "oldest", "aged_remaining", "aged_srpt"])
def test_a_closed_fleet_obeys_littles_law_if_it_does_enough_tasks(policy):
    """Robots = tasks that end in a second times their latency, whatever the order of service."""
    long, short = closed_figures(policy, 80), closed_figures(policy, 2)
    assert long["tasks_per_robot"] == 80 and long["stationary"]
    assert long["tasks_per_min"] / 60 * long["latency_s"]["avg"] == pytest.approx(50, rel=0.015)
    assert short["tasks_per_robot"] == 2 and not short["stationary"]


def test_littles_law_is_checked_against_the_tasks_under_way():
    """Counted at a hundred thousand times between the warm-up (a quarter of the arrivals) and the last."""
    what = WORKLOADS["meta_smol"]
    outcome = open_loop(Load.of(what, 1, tasks=200), FIFO, 1.6, {EDGE: assumed(what)})
    begun_s = np.array([robot.began_s for robot in outcome.robots])
    ends_s = np.array(outcome.ends_s)
    since_s, until_s = np.quantile([begun_s.min(), begun_s.max()], (0.25, 1.0))
    at_s = np.linspace(since_s, until_s, 100_000)
    under_way = np.searchsorted(np.sort(begun_s), at_s) - np.searchsorted(np.sort(ends_s), at_s)
    ended = (since_s < ends_s) & (ends_s <= until_s)
    rate_hz = ended.sum() / (until_s - since_s)
    expected = rate_hz * (ends_s - begun_s)[ended].mean() / under_way.mean()
    assert figures(outcome)["little"] == pytest.approx(expected, rel=1e-3)
    assert expected < 0.9


@pytest.mark.parametrize("policy", NAMES)
def test_a_task_waits_for_its_first_chunk_moves_and_stands(policy):
    """Nothing else makes up its latency."""
    what = WORKLOADS["libero_pi05"]
    drawn = Load.of(what, 0, tasks=80)
    found = figures(open_loop(drawn, find(FLEET_RULES, policy), 1.6, {EDGE: assumed(what)}))
    motion_s = sum(script.actions for script in drawn.scripts) / len(drawn.scripts) / 30.0
    standing_s = found["first_wait_s"]["avg"] + found["stall_s"]["avg"]
    assert found["latency_s"]["avg"] == pytest.approx(motion_s + standing_s, abs=1e-6)
