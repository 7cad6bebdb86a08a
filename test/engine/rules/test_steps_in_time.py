"""Steps of staggered chunks wait for the next chunk if it is due soon, and not for late joints.

On simulated lanes with an injected clock, as in simulated_lanes; joints are new each JOINTS_S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from planned import make_act, make_again, make_observe
from simulated_lanes import JOINTS_S, Streams, profile
from wishes import due

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, FRESH_FIRST, ONE, EngineConfig
from vla_accel_ros.engine.grid import AHEAD
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, WHOLE, Act, MicroBatch, Pace, Request, Status
from vla_accel_ros.engine.rules.chunks import LATE, NO_WAIT, StaggeredChunks, staggered
from vla_accel_ros.engine.rules.rule import Setup
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.rules.text import PATIENCE_S
from vla_accel_ros.engine.simulated import IDLE, Host

STEPS = 10
STEP_S = 0.00126
TAKES_S = {OBSERVE: 1e-4, ACT: STEP_S, WHOLE: STEP_S * STEPS, ASK: 0.0008}


class Hurrying(StaggeredChunks):
    """Steps one after another, whatever is about to come."""

    def _wait_s(self, lane: str, step: MicroBatch, now_s: float) -> tuple[float, float]:
        return NO_WAIT


def streams(policy: StaggeredChunks, word: str = ACTIONS_APART, chunk_s: float = JOINTS_S) -> Streams:
    made = Streams(word, policy, TAKES_S, steps=STEPS, chunk_s=chunk_s)
    made.run_for(0.5, asking=False)
    return made


def in_groups(groups: int, takes_s: dict[str, float], host: Host = IDLE) -> Streams:
    """One lane, in which a step comes between groups of a frame and of a token."""
    policy = StaggeredChunks(STEPS, groups=groups)
    return Streams(
        ONE, policy, takes_s, steps=STEPS, chunk_s=JOINTS_S, groups=groups, text_groups=4, host=host
    )


def wait_for_text(made: Streams, batch: MicroBatch) -> Callable[[], None] | None:
    """Launch text behind nothing, and nothing behind text."""
    text = batch.requests[-1].want == ASK
    if text:
        made.clock.wait(max(made.runner.ends_s, default=0.0))
    wait = type(made.runner).run(made.runner, batch)
    if not text or wait is None:
        return wait
    wait()
    return None


def intervals_s(made: Streams) -> np.ndarray:
    """From one chunk to the next, once seats are full."""
    return np.diff([end_s for end_s, _, _ in made.made[""]][2 * STEPS :])


def took_s(made: Streams) -> np.ndarray:
    """From its beginning to its end, of each chunk."""
    return np.array([end_s - request.begun_s for end_s, _, request in made.made[""]])


def test_a_chunk_leaves_each_time_that_one_is_due_and_no_step_is_for_nothing() -> None:
    made, hurrying = streams(StaggeredChunks(STEPS)), streams(Hurrying(STEPS))
    assert len(intervals_s(made)) > 50 and made.steps_run <= 1.05 * len(made.made[""])
    assert hurrying.steps_run >= 1.4 * len(hurrying.made[""])
    assert intervals_s(made).max() <= JOINTS_S * (1 + AHEAD) < intervals_s(hurrying).max()


def test_a_chunk_takes_little_longer_for_it_where_joints_are_slower_than_steps() -> None:
    """A step waits for what comes before it would be over, once for each chunk that begins."""
    for chunk_s in (0.004, 0.01, 0.05):
        made, hurrying = (
            streams(StaggeredChunks(STEPS), chunk_s=chunk_s),
            streams(Hurrying(STEPS), chunk_s=chunk_s),
        )
        begins = STEPS * STEP_S / chunk_s + 1
        assert took_s(made).max() <= took_s(hurrying).max() + begins * (STEP_S + LATE * chunk_s)
        assert len(made.made[""]) >= len(hurrying.made[""]) - 2


def test_text_gets_the_time_in_which_a_step_waits_only_where_a_token_fits() -> None:
    made = streams(StaggeredChunks(STEPS), ONE)
    before, began = len(made.made[""]), made.clock.now_s
    made.runner.profile = profile({**TAKES_S, ASK: JOINTS_S})
    made.run_for(0.4)
    tokens = len(made.tokens)
    assert 0 < tokens <= 0.4 / PATIENCE_S + 3, "as rarely as without any time left over"
    assert (len(made.made[""]) - before) / (made.clock.now_s - began) > 0.9 / JOINTS_S


@pytest.mark.parametrize("groups", [9, 16])
def test_groups_of_frames_and_of_tokens_fill_the_time_between_two_steps(groups: int) -> None:
    """On one lane, with times of pi0 on an H200, and 0.1 ms of the host for each group."""
    takes_s = {OBSERVE: 0.0049 / groups + 1e-4, ACT: STEP_S, WHOLE: STEP_S * STEPS, ASK: 0.00145 / 4 + 1e-4}
    made = in_groups(groups, takes_s)
    made.run_for(2.0)
    assert made.rate_hz() >= 0.93 / JOINTS_S, "though text would take all that it gets"
    assert np.quantile(intervals_s(made), 0.99) <= 0.0025
    assert len(made.frames_seen[""]) >= 59 and len(made.tokens) >= 100 and made.levels == [(0.0, "none")]
    assert made.steps_run <= 1.05 * len(made.made[""])


@pytest.mark.parametrize("groups", [9, 16])
def test_groups_of_tokens_are_launched_behind_steps_that_end_before_the_joints_come(groups: int) -> None:
    """Half as much text again is written where the host's 0.2 ms of each micro-batch pass while the GPU
    computes."""
    takes_s = {OBSERVE: 0.0049 / groups, ACT: STEP_S, WHOLE: STEP_S * STEPS, ASK: 0.0012 / 4}
    said = list[int]()
    for waits in (True, False):
        made = in_groups(groups, takes_s, Host(launch_s=2e-4))
        if waits:
            made.runner.run = partial(wait_for_text, made)  # type: ignore[method-assign]
        made.run_for(2.0)
        assert made.rate_hz() >= 0.93 / JOINTS_S and made.levels[-1][1] == "none"
        assert len(made.frames_seen[""]) >= 59 and made.steps_run <= 1.05 * len(made.made[""])
        said.append(len(made.tokens))
    assert np.quantile(intervals_s(made), 0.99) <= 0.0025
    waited, ahead = said
    assert ahead >= 2 * 60 and ahead >= 1.35 * waited


def test_steps_do_not_wait_where_what_is_not_finished_is_dropped_with_the_next_frame() -> None:
    """Whole first chunks, on one lane with frames and on lanes of their own."""
    rates: dict[str, float] = {}
    takes_s = {OBSERVE: 0.0053, ACT: STEP_S, WHOLE: 0.0045, ASK: 0.0013}
    for lanes in (ONE, ALL_APART):
        config = EngineConfig(staggered=STEPS, steps=STEPS, staggering=FRESH_FIRST, fast=True, lanes=lanes)
        chosen, waiting = staggered(Setup(config, Profile())), StaggeredChunks(STEPS)
        for name, policy in (("chosen", chosen), ("waiting", waiting)):
            made = Streams(lanes, policy, takes_s, steps=STEPS, fresh=True, chunk_s=JOINTS_S)
            made.run_for(2.0, asking=False)
            rates[f"{name} {lanes}"] = made.rate_hz()
    assert rates[f"chosen {ONE}"] >= 1.3 * rates[f"waiting {ONE}"], rates
    assert rates[f"chosen {ALL_APART}"] == rates[f"waiting {ALL_APART}"]


class OneBehind(Lane):
    """Waits for all that is ahead whenever something was launched behind it."""

    @property
    def _is_full(self) -> bool:
        return len(self.ahead) > 1 or super()._is_full


def test_a_host_that_takes_longer_than_a_group_keeps_the_gpu_busy() -> None:
    """With what the host took of a chunk of pi0 on the way of a stream, about a millisecond: the next step is
    launched behind a group that is behind a step."""
    takes_s = {OBSERVE: 0.0054 / 9, ACT: 0.00133, WHOLE: 0.0133, ASK: 0.0013 / 4}
    rates = list[float]()
    for lane in (Lane, OneBehind):
        made = in_groups(9, takes_s, Host(launch_s=3e-4, begin_s=4e-4, result_s=1.5e-4))
        made.lanes["main"].__class__ = lane
        made.run_for(2.0)
        assert len(made.frames_seen[""]) >= 59 and made.levels[-1][1] == "none"
        rates.append(made.rate_hz())
    assert rates[0] >= 0.97 / JOINTS_S and rates[1] <= 0.9 * rates[0], rates


class TestWaiting:
    def begun(self, due_s: float, robot: str = "", period_s: float = 0.002) -> Request:
        """A chunk in progress, whose stream's next is due then."""
        request = make_act(robot, begun=True)
        request.pace = Pace(1 / period_s, math.inf)
        request.wish = Act(sense=lambda: (np.zeros(3, np.float32), 1), grid=due(due_s))
        return request

    @pytest.fixture
    def policy(self) -> StaggeredChunks:
        policy = StaggeredChunks(3)
        policy.plan.profile.note("act.denoise", 1, 0.0015)
        return policy

    def test_it_waits_until_the_next_is_due_and_not_for_late_joints(self, policy: StaggeredChunks) -> None:
        old = self.begun(1.002)
        assert policy.next("main", (old,), 1.001) is None
        assert policy.wake_s((old,), 1.001) == pytest.approx(1.002)
        step = policy.next("main", (old,), 1.002)
        assert step is not None and step.requests == (old,)
        assert policy.wake_s((old,), 1.002) == float("inf")

    def test_other_work_may_hold_it_up_a_little(self, policy: StaggeredChunks) -> None:
        old = self.begun(1.002)
        assert policy.next("main", (old,), 1.001) is None
        assert policy.busy_until_s((old,), 1.001, 1.0) == pytest.approx(1.002 + LATE * 0.002)

    def test_it_does_not_wait_for_what_comes_after_the_step(self, policy: StaggeredChunks) -> None:
        old = self.begun(1.002)
        rules = Rules(policy, policy.plan)
        step = rules.next("main", (old,), 1.0004)
        assert step is not None and step.requests == (old,)
        assert rules.next("main", (old,), 1.0004) is None, "it is over when the next is due"

    def test_a_step_behind_text_is_over_later_and_waits_for_what_comes_until_then(
        self, policy: StaggeredChunks
    ) -> None:
        old = self.begun(1.002)
        policy.plan._over_s["main"] = 1.0006
        assert policy.next("main", (old,), 1.0004) is None, "it would be over after the next is due"
        assert policy.wake_s((old,), 1.0004) == pytest.approx(1.002)

    def test_what_comes_begins_at_once_and_frames_do_not_wait(self, policy: StaggeredChunks) -> None:
        old, again, see = self.begun(1.002), make_again(), make_observe()
        assert policy.next("main", (old,), 1.001) is None
        seen = policy.next("main", (old, see), 1.001)
        assert seen is not None and seen.requests == (see,)
        step = policy.next("main", (old, again), 1.0012)
        assert step is not None and step.requests == (old, again)

    def test_nothing_waits_for_whom_there_is_no_seat_or_who_brings_no_joints(
        self, policy: StaggeredChunks
    ) -> None:
        full = [self.begun(1.002, robot) for robot in "abc"]
        assert policy.next("main", full, 1.001) is not None
        blind = self.begun(1.002)
        blind.wish = Act(grid=due(1.002))
        assert policy.next("main", (blind,), 1.001) is not None

    def test_of_several_robots_the_next_is_waited_for(self, policy: StaggeredChunks) -> None:
        soon, later = self.begun(1.002, "a"), self.begun(1.0024, "b")
        assert policy.next("main", (soon, later), 1.0015) is None
        assert policy.wake_s((soon, later), 1.0015) == pytest.approx(1.002)

    def test_a_group_that_does_not_fit_waits_for_one_step_and_follows_it(self) -> None:
        policy, old, see = StaggeredChunks(3, groups=4), self.begun(1.002), make_observe()
        rules = Rules(policy, policy.plan)
        for stage in ("act.denoise", "observe.encode"):
            policy.plan.profile.note(stage, 1, 0.0015)
        assert rules.next("main", (old, see), 1.001) is None, "it would be over long after a chunk was due"
        again = make_again()
        step = rules.next("main", (old, again, see), 1.002)
        assert step is not None and step.requests == (old, again)
        again.status, again.pace, again.wish = Status.RUNNING, old.pace, old.wish
        old.act.grid.due_s = 1.004
        group = rules.next("main", (old, again, see), 1.0021)
        assert group is not None and group.requests == (see,), "behind the step, though it does not fit"
        assert rules.next("main", (old, again, see), 1.0022) is None, "the second is the next step's"


@pytest.mark.parametrize("groups", [8, 12])
def test_the_last_group_of_a_frame_counts_as_long_as_the_others(groups: int) -> None:
    """Where it seemed short, as nobody waited for it, two groups ran before a step, which came late."""
    takes_s = {OBSERVE: 0.0054 / groups, ACT: 0.0013, WHOLE: 0.013, ASK: 0.0013 / 4}
    made = in_groups(groups, takes_s, Host(launch_s=2e-4))
    made.run_for(2.0)
    assert np.quantile(intervals_s(made), 0.99) <= 0.0024 and made.rate_hz() >= 480
