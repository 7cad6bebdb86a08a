"""Which chunks are denoised next, together: decided on plain requests, without a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import cast

import numpy as np
import pytest
from builders import JOINTS, NOBODY
from hypothesis import given
from hypothesis import strategies as st
from planned import make_act, make_again, make_observe

from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DENOISE,
    ENCODE,
    OBSERVE,
    PREFILL,
    Act,
    Ask,
    MicroBatch,
    Observe,
    Request,
    Status,
    Waits,
)
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import Rules

STEPS = 4
PREFIX = Prefix(0, 0, 0, 2, 1, np.zeros(JOINTS, np.float32), "lift", "", NOBODY, None, cast(Prefixes, None))


def chosen(policy: Rule, *ready: Request) -> tuple[Request, ...]:
    batch = taken(policy, ready, 0.0)
    return () if batch is None else batch.requests


def taken(policy: Rule, ready: Sequence[Request], now_s: float) -> MicroBatch | None:
    """What runs next, which the rule is told."""
    batch = policy.next("main", ready, now_s)
    if batch is not None:
        policy.chose("main", batch, now_s)
        if isinstance(policy, StaggeredChunks):
            policy.plan.chose("main", batch, now_s)
    return batch


@pytest.mark.parametrize("name", ["chunks", "tokens", "text", "rules"])
def test_a_policy_plans_where_there_is_no_torch(name: str) -> None:
    code = (
        f"import sys, vla_accel_ros.engine.rules.{name}, vla_accel_ros.engine.request\n"
        "print(sorted({'torch', 'triton', 'rclpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


class TestWholeChunks:
    def test_a_fresh_frame_is_acted_on_before_the_next_is_seen(self) -> None:
        see, act = make_observe(), make_act()
        assert WholeChunks().next("main", (see, act), 0.0) == MicroBatch(DENOISE, (act,), steps=0)

    def test_newer_joints_come_after_the_next_frame(self) -> None:
        see, again = make_observe(), make_again()
        assert WholeChunks().next("main", (again, see), 0.0) == MicroBatch(ENCODE, (see,))
        assert chosen(WholeChunks(), again) == (again,)

    def test_one_chunk_at_a_time_in_order_of_priority_then_of_submission(self) -> None:
        first, second, urgent = make_act("a"), make_act("b"), make_act("c")
        urgent.priority = 1
        assert chosen(WholeChunks(), first, second, urgent) == (urgent,)
        assert chosen(WholeChunks(), first, second) == (first,)

    def test_who_does_not_belong_to_a_stream_needs_nothing_new(self) -> None:
        act = make_again()
        act.waits = Waits.ROOM
        assert chosen(WholeChunks(), make_observe(), act) == (act,)

    def test_callers_that_act_on_one_frame_again_and_again_leave_a_frame_its_turn(self) -> None:
        policy, prefix = WholeChunks(), replace(PREFIX, version=3)
        acts = [Request(Act(), prefix=prefix) for _ in range(3)]
        see, acts[2].priority = make_observe("other"), 1
        for number, request in enumerate((acts[0], see, *acts[1:])):
            request.submitted_s = float(number)
        assert chosen(policy, *acts[:2], see) == (acts[0],), "the first chunk of its frame"
        assert chosen(policy, acts[1], see) == (see,) and chosen(policy, acts[1]) == (acts[1],)
        assert chosen(policy, acts[2], see) == (acts[2],), "it is more urgent"
        acts[1].submitted_s = 0.5
        assert chosen(policy, acts[1], see) == (acts[1],), "it came first"
        newer = Request(Act(), prefix=replace(prefix, version=4))
        newer.submitted_s = 9.0
        assert chosen(policy, newer, see) == (newer,)

    def test_nothing_ready_is_nothing_to_do(self) -> None:
        assert WholeChunks().next("main", (), 0.0) is None
        assert StaggeredChunks(2).next("main", (), 0.0) is None


class TestStaggeredChunks:
    def test_one_begins_in_each_step_beside_those_under_way(self) -> None:
        under_way, fresh, later = make_act(begun=True), make_act(), make_act()
        batch = StaggeredChunks(3).next("main", (under_way, fresh, later, make_observe()), 0.0)
        assert batch == MicroBatch(DENOISE, (under_way, fresh))

    def test_the_next_frame_is_seen_before_a_step_that_begins_nothing(self) -> None:
        under_way, see = make_act(begun=True), make_observe()
        assert chosen(StaggeredChunks(3), under_way, see) == (see,)
        assert chosen(StaggeredChunks(3), under_way) == (under_way,)

    def test_steps_alternate_with_the_groups_of_frames_and_a_fresh_frame_goes_before_both(self) -> None:
        policy, frames = StaggeredChunks(3, groups=4), [make_observe(), make_observe("other", priority=1)]
        under_way, again = make_act(begun=True), make_again()
        frames[0].status, frames[0].stage = Status.RUNNING, PREFILL
        group = MicroBatch(PREFILL, (frames[0],))
        for _ in range(3):
            step = taken(policy, (under_way, again, *frames), 0.0)
            assert step == MicroBatch(DENOISE, (under_way, again))
            assert taken(policy, (under_way, again, *frames), 0.0) == group
        for _ in range(2):
            assert chosen(policy, *frames) == (frames[0],), "there is nothing else"
        assert chosen(policy, under_way, frames[1]) == (under_way,), "also before the next frame begins"
        fresh = make_act()
        assert chosen(policy, under_way, *frames, fresh) == (under_way, fresh)

    def test_a_step_that_a_chunk_begins_in_does_not_wait_for_a_group_unless_that_follows_a_step(self) -> None:
        policy, see, again = StaggeredChunks(3, groups=4), make_observe(), make_again()
        under_way = make_act(begun=True)
        policy.plan.profile.note("act.denoise", 1, 0.001)
        assert taken(policy, (under_way,), 1.0) == MicroBatch(DENOISE, (under_way,))
        idle, at_once = 1.0015, 1.001
        step = taken(policy, (under_way, again, see), idle)
        assert step == MicroBatch(DENOISE, (under_way, again))
        newer, late = make_again(), idle + 0.0015
        after = taken(policy, (under_way, newer, see), late)
        assert after is not None and after.requests == (see,), "once, however late the host is"
        policy = StaggeredChunks(3, groups=4)
        policy.plan.profile.note("act.denoise", 1, 0.001)
        assert taken(policy, (under_way,), 1.0) is not None
        group = taken(policy, (under_way, again, see), at_once)
        assert group is not None and group.requests == (see,)

    def test_newer_joints_join_a_step_when_there_is_nothing_else(self) -> None:
        under_way, see, again = make_act(begun=True), make_observe(), make_again()
        assert chosen(StaggeredChunks(3), under_way, again, see) == (see,)
        assert chosen(StaggeredChunks(3), under_way, again) == (under_way, again)
        assert chosen(StaggeredChunks(3), again) == (again,)

    def test_no_more_are_begun_than_there_are_seats(self) -> None:
        under_way = [make_act(begun=True) for _ in range(2)]
        assert chosen(StaggeredChunks(2), *under_way, make_act()) == tuple(under_way)
        assert chosen(StaggeredChunks(2), *under_way, make_again()) == tuple(under_way)

    def test_other_words_take_the_seats_of_their_own_robot_alone(self) -> None:
        old, beside = make_act("a", begun=True), make_act("b", "push", begun=True)
        new = make_act("a", "put it down")
        assert chosen(StaggeredChunks(2), old, beside, new) == (beside, new)

    def test_seats_are_taken_by_who_begins_and_not_by_who_waits(self) -> None:
        """A request that nobody waits for among streams begins when a chunk is finished."""
        old = [make_act(begun=True) for _ in range(2)]
        alone, new = make_act(stream=False), make_act(words="put it down")
        assert chosen(StaggeredChunks(2), *old, alone, new) == tuple(old)

    def test_a_request_that_somebody_waits_for_is_never_pushed_out(self) -> None:
        alone, new = make_act(stream=False, begun=True), make_act(words="put it down")
        assert chosen(StaggeredChunks(2), alone, new) == (alone, new)

    def test_what_takes_other_steps_is_made_whole_and_at_once(self) -> None:
        whole, agreeing = make_act(), make_act()
        whole.wish, agreeing.wish = Act(steps=3), Act(committed=np.zeros((1, 6), np.float32))
        begun = make_act(begun=True)
        assert StaggeredChunks(2).next("main", (begun, whole), 0.0) == MicroBatch(DENOISE, (whole,), steps=0)
        batch = StaggeredChunks(2).next("main", (begun, agreeing), 0.0)
        assert batch == MicroBatch(DENOISE, (begun, agreeing))

    def test_the_first_chunk_of_a_frame_goes_before_what_is_whole_and_not_of_a_stream(self) -> None:
        alone, first = make_act(stream=False), make_act()
        alone.wish, first.wish, first.priority = Act(steps=3), Act(first=True), 1
        assert chosen(StaggeredChunks(2), make_act(begun=True), alone, first) == (first,)

    @given(
        seats=st.integers(2, STEPS),
        arrivals=st.lists(st.sampled_from(["a", "b", "a other", "alone", ""]), max_size=20),
    )
    def test_seats_are_never_more_than_there_are_and_everybody_comes_to_an_end(
        self, seats: int, arrivals: list[str]
    ) -> None:
        """What a runner does, without its network: each chunk takes as many steps as ever, one in each."""
        policy, queue, said = StaggeredChunks(seats), list[Request](), 0
        for arrival in [*arrivals, *[""] * (len(arrivals) + 1) * STEPS]:
            if arrival:
                said += arrival == "a other"
                words = f"lift {said}" if arrival.startswith("a") else "lift"
                queue.append(make_act(arrival[:1], words, stream=arrival != "alone"))
            batch = policy.next("main", queue, 0.0)
            for request in () if batch is None else batch.requests:
                if not request.begun:
                    told = request.instruction
                    queue = [r for r in queue if not (_told_otherwise(r, request, told))]
                    request.status = Status.RUNNING
                request.progress = (request.progress or 0) + 1
            assert batch is None or sum(r.progress == 1 for r in batch.requests) <= 1
            assert sum(request.begun for request in queue) <= seats
            queue = [request for request in queue if (request.progress or 0) < STEPS]
        assert not queue


def _told_otherwise(old: Request, new: Request, words: str) -> bool:
    """Whom the scheduler drops when a stream begins with other words."""
    streams = old.stream and new.stream and old.begun
    return streams and old.robot == new.robot and old.instruction != words


def test_a_request_begins_with_the_first_stage_of_its_wish() -> None:
    stages = {wish.want: Request(wish).stage for wish in (Observe(), Act(), Ask())}
    assert stages == {OBSERVE: ENCODE, ACT: DENOISE, ASK: PREFILL}


def test_a_request_stays_small() -> None:
    assert len(fields(Request)) <= 20


def test_rules_keep_nothing_of_frames_that_nobody_holds() -> None:
    rules = Rules(WholeChunks())
    for number in range(100):
        assert rules.next("main", (make_observe(),), float(number)) is not None
    assert not rules._urgent
