"""Further chunks of a frame behind whole first ones, on one lane whose micro-batches take given times."""

from __future__ import annotations

import numpy as np
import pytest
from planned import make_again, make_observe
from simulated_lanes import FRAME_S, Streams

from vla_accel_ros.engine.config import FRESH_FIRST, ONE, EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, WHOLE, Request, Status
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, staggered
from vla_accel_ros.engine.rules.rule import Rule, Setup
from vla_accel_ros.engine.rules.rules import Rules

STEPS = 10
TAKES_S = {OBSERVE: 0.0051, ACT: 0.0012, WHOLE: 0.005, ASK: 0.0019}
JOINTS_S = 0.001


class Counting(Streams):
    """begun: further chunks. firsts_s: from a frame to its first chunk."""

    def __init__(self, policy: Rule, text_share: float = 0.0) -> None:
        self.begun = 0
        super().__init__(
            ONE, policy, TAKES_S, steps=STEPS, fresh=True, chunk_s=JOINTS_S, joints_s=JOINTS_S,
            text_share=text_share,
        )  # fmt: skip

    def _begins(self, request: Request) -> None:
        self.begun += not request.whole

    @property
    def finished(self) -> int:
        """Further chunks that were."""
        return sum(not request.whole for _, _, request in self.made[""])

    @property
    def firsts_s(self) -> np.ndarray:
        first: dict[int, float] = {}
        for end_s, version, _ in self.made[""]:
            first.setdefault(version, end_s)
        return np.array([end_s % FRAME_S for end_s in first.values()])


def chosen(text_share: float = 0.0) -> Rule:
    config = EngineConfig(staggered=STEPS, steps=STEPS, staggering=FRESH_FIRST, text_share=text_share)
    return staggered(Setup(config, Profile()))


def test_no_chunk_begins_that_the_next_frame_would_drop() -> None:
    made, any_time = Counting(chosen()), Counting(StaggeredChunks(STEPS, dropped_after=1000))
    for system in (made, any_time):
        system.run_for(4.0)
    assert made.finished >= 0.9 * made.begun
    assert any_time.finished <= 0.6 * any_time.begun
    assert made.finished >= 0.92 * any_time.finished, "hardly one that would not be dropped is missing"
    assert len(made.tokens) >= 1.3 * len(any_time.tokens), "text has the time of those"


def test_text_has_its_share_and_first_chunks_do_not_wait_for_it() -> None:
    wanted = 0.15
    without, share = Counting(chosen()), Counting(chosen(wanted), wanted)
    for system in (without, share):
        system.run_for(2.0)
    assert len(share.tokens) * TAKES_S[ASK] >= 0.9 * wanted * 2.0
    assert len(without.tokens) <= 0.75 * len(share.tokens)
    for quantile in (0.5, 0.99):
        longer_s = np.quantile(share.firsts_s, quantile) - np.quantile(without.firsts_s, quantile)
        assert longer_s <= TAKES_S[ASK] / 4
    assert share.finished >= 0.5 * without.finished, "a token takes as long as a step and a half"


class TestInTime:
    @pytest.fixture
    def policy(self) -> StaggeredChunks:
        policy = StaggeredChunks(2, dropped_after=4)
        policy.plan.profile.note("act.denoise", 1, 0.01)
        for now_s in (1.0, 1.1):
            assert Rules(policy, policy.plan).next("main", (make_observe(),), now_s) is not None
        return policy

    def test_one_that_ends_before_the_next_frame_begins(self, policy: StaggeredChunks) -> None:
        assert policy.next("main", (make_again(),), 1.155) is not None
        assert policy.next("main", (make_again(),), 1.165) is None, "the frame comes at 1.2"

    def test_one_that_has_begun_goes_on(self, policy: StaggeredChunks) -> None:
        begun, later = make_again(), make_again()
        begun.status = Status.RUNNING
        step = policy.next("main", (begun, later), 1.19)
        assert step is not None and step.requests == (begun,)

    def test_where_frames_stay_away_chunks_begin(self, policy: StaggeredChunks) -> None:
        assert policy.next("main", (make_again(),), 1.21) is not None

    def test_another_robots_frames_do_not_count(self, policy: StaggeredChunks) -> None:
        assert policy.next("main", (make_again("other"),), 1.19) is not None

    def test_where_frames_are_faster_than_a_chunk_it_begins_at_any_time(
        self, policy: StaggeredChunks
    ) -> None:
        policy.plan.profile.note("act.denoise", 1, 0.05)
        assert policy.next("main", (make_again(),), 1.19) is not None
