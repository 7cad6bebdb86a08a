"""The schedule of frames follows from measured times, measured acceptance and what the user prefers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import make_act, make_observe

from vla_accel_ros.engine.config import (
    AUTO,
    PIPELINED,
    PREFERENCES,
    RATE,
    SEQUENTIAL,
    SPECULATIVE,
    TOKEN_MODES,
)
from vla_accel_ros.engine.profile import Times
from vla_accel_ros.engine.request import DECODE, ENCODE, PREFILL, MicroBatch, Request, Status
from vla_accel_ros.engine.rules.tokens import (
    SCHEDULES,
    TokenFrames,
    best,
    draft_lengths,
    expected,
    most_riders,
)

SERVER = Times(prefill_s=0.008, drafted_s=0.0081, packed_s=0.0082, decode_s=0.0036)
K = 7


def said(scene: int, tokens: int) -> tuple[int, ...]:
    """What a frame of a scene says."""
    return tuple((7 * scene + 3 * place) % 11 for place in range(tokens))


class Machine:
    """Runs what a policy chooses without a network: forwards, frames, and what each took of them.

    finished: (number of the frame, forwards it was in, tokens of its draft that were right).
    """

    def __init__(self, policy: TokenFrames, tokens: int) -> None:
        self.policy, self.tokens = policy, tokens
        self.batches: list[MicroBatch] = []
        self.finished: list[tuple[int, int, int]] = []
        self.queue: list[Request] = []
        self._scenes: dict[Request, int] = {}
        self._right: dict[Request, int] = {}

    def frame(self, scene: int, robot: str = "", words: str = "lift", stream: bool = True) -> Request:
        """A frame comes, and all runs that may run then."""
        request = make_act(robot, words, stream)
        request.number = len(self._scenes)
        self._scenes[request] = scene
        self.queue.append(request)
        while self.step():
            pass
        return request

    def step(self) -> bool:
        batch = self.policy.next("main", tuple(self.queue), 0.0)
        if batch is None:
            return False
        self.batches.append(batch)
        for request in batch.requests:
            whole = said(self._scenes[request], self.tokens)
            if not request.begun:
                assert batch.stage == PREFILL and request is batch.requests[-1]
                request.status = Status.RUNNING
                request.tokens = self._verified(request, whole, batch.draft)
            else:
                request.tokens.append(whole[len(request.tokens)])
            request.progress = (request.progress or 0) + 1
            if len(request.tokens) == self.tokens:
                request.status = Status.FINISHED
        self.policy.ran(batch, 0.0)
        for request in [one for one in self.queue if one.finished]:
            assert tuple(request.tokens) == said(self._scenes[request], self.tokens)
            self.finished.append((request.number, request.progress, self._right[request]))
            self.queue.remove(request)
        return True

    def _verified(self, request: Request, whole: tuple[int, ...], draft: tuple[int, ...]) -> list[int]:
        assert len(draft) in draft_lengths(self.policy.mode, self.tokens)
        right = 0
        while right < len(draft) and whole[right] == draft[right]:
            right += 1
        self._right[request] = right
        return list(whole[: right + 1])


@pytest.mark.parametrize(
    ("accepted", "prefer", "camera_hz", "schedule"),
    [
        (0.0, "rate", float("inf"), "pipelined"),
        (3.0, "rate", float("inf"), "speculative"),
        (6.0, "rate", float("inf"), "speculative"),
        (0.0, "freshness", float("inf"), "sequential"),
        (3.0, "freshness", float("inf"), "speculative"),
        (6.0, "freshness", float("inf"), "speculative"),
        (0.0, "rate", 30.0, "sequential"),  # 33 frames/s one after another is more than the camera gives
        (0.0, "rate", 60.0, "pipelined"),
    ],
)
def test_what_serves_best(accepted: float, prefer: str, camera_hz: float, schedule: str) -> None:
    assert best(SERVER, K, accepted, prefer, camera_hz) == schedule


def test_expectations_by_hand() -> None:
    times = Times(prefill_s=8.0, drafted_s=9.0, packed_s=10.0, decode_s=4.0)
    assert expected("sequential", times, 4, 2.0, "rate") == (1 / 20, 20.0)
    assert expected("pipelined", times, 4, 2.0, "rate") == (1 / 10, 40.0)
    assert expected("speculative", times, 4, 2.0, "rate") == (1 / 11, 22.0)
    assert expected("speculative", times, 4, 2.0, "freshness") == (1 / 13, 13.0)
    assert expected("pipelined", times, 4, 2.0, "rate", camera_hz=1 / 25) == (1 / 25, 3 * 25.0 + 10.0)
    assert expected("sequential", times, 4, 2.0, "rate", camera_hz=1 / 25) == (1 / 25, 20.0)


@given(
    times=st.builds(Times, *[st.floats(1e-4, 1.0)] * 4),
    tokens=st.integers(1, 32),
    part=st.floats(0.0, 1.0),
    camera_hz=st.sampled_from([10.0, 30.0, 60.0, float("inf")]),
    prefer=st.sampled_from(PREFERENCES),
)
def test_nothing_is_better_than_the_best_by_more_than_a_twentieth(
    times: Times, tokens: int, part: float, camera_hz: float, prefer: str
) -> None:
    accepted = part * (tokens - 1)
    found = {one: expected(one, times, tokens, accepted, prefer, camera_hz) for one in SCHEDULES}
    chosen = found[best(times, tokens, accepted, prefer, camera_hz)]
    if prefer == "rate":
        assert 1.05001 * chosen.rate_hz >= max(made.rate_hz for made in found.values())
    else:
        assert chosen.age_s <= 1.05001 * min(made.age_s for made in found.values())


def test_alike_in_both_respects_nothing_changes() -> None:
    alike = Times(prefill_s=1.0, drafted_s=1.0, packed_s=1.0, decode_s=1.0)
    for schedule in SCHEDULES:
        assert best(alike, 1, 0.0, "rate", now=schedule) == schedule


def test_acceptance_is_the_mean_of_what_was_right_and_forgets() -> None:
    policy = TokenFrames("pipelined", "rate", tokens=4)
    policy.note((1, 2, 3, 4), draft=())
    assert policy.accepted == 0.0
    policy.note((1, 2, 3, 4), draft=(1, 2, 3, 4))
    assert policy.accepted == 3.0, "the last token is of no use as a draft"
    policy.note((1, 2, 3, 4), draft=(1, 9, 3, 4))
    assert policy.accepted == 2.0
    for _ in range(200):
        policy.note((1, 2, 3, 4), draft=(9,))
    assert policy.accepted < 1e-6


@settings(max_examples=200)
@given(
    scenes=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.booleans()), max_size=12),
    mode=st.sampled_from(TOKEN_MODES),
    prefer=st.sampled_from(PREFERENCES),
    tokens=st.integers(1, 5),
)
def test_every_mode_finishes_every_frame_and_no_more_ride_than_there_is_room_for(
    scenes: list[tuple[int, str, bool]], mode: str, prefer: str, tokens: int
) -> None:
    machine = Machine(TokenFrames(mode, prefer, tokens, SERVER), tokens)
    for scene, robot, stream in scenes:
        machine.frame(scene, robot, words=f"lift {robot}", stream=stream)
    assert all(len(b.requests) - 1 <= most_riders(mode, prefer, tokens) for b in machine.batches)
    waiting = {request.number for request in machine.queue}
    assert {number for number, _, _ in machine.finished} | waiting == set(range(len(scenes)))
    assert len(machine.finished) + len(waiting) == len(scenes)
    assert all(done + right == tokens for _, done, right in machine.finished)
    machine.frame(0, stream=False)  # somebody waits for it: it takes all that has begun along
    assert len(machine.finished) == len(scenes) + 1 and not machine.queue


def test_sequential_is_one_frame_at_a_time() -> None:
    machine = Machine(TokenFrames(SEQUENTIAL, RATE, tokens=4), 4)
    for number in range(3):
        machine.frame(number)
        assert machine.finished[number:] == [(number, 4, 0)]


def test_a_pipeline_takes_a_frame_in_and_one_out_with_every_forward() -> None:
    machine = Machine(TokenFrames(PIPELINED, RATE, tokens=4), 4)
    for number in range(6):
        machine.frame(number)
        assert len(machine.batches) == number + 1 and machine.batches[-1].stage == PREFILL
        assert [finished for finished, _, _ in machine.finished] == list(range(number - 2))
    assert len(machine.queue) == 3


def test_what_a_pipeline_has_under_way_waits_for_the_next_frame_and_lets_it_be_seen() -> None:
    machine = Machine(TokenFrames(PIPELINED, RATE, tokens=4), 4)
    machine.frame(0)
    assert machine.policy.next("main", machine.queue, 0.0) is None
    see = make_observe()
    assert machine.policy.next("main", [*machine.queue, see], 0.0) == MicroBatch(ENCODE, (see,))


def test_without_overlap_a_frame_is_finished_before_the_next_is_seen() -> None:
    policy, under_way = TokenFrames(SPECULATIVE, "freshness", tokens=4), make_act(begun=True)
    batch = policy.next("main", (make_observe(), under_way, make_act()), 0.0)
    assert batch == MicroBatch(DECODE, (under_way,))


def test_a_frame_that_was_acted_on_is_not_acted_on_again() -> None:
    again = make_act()
    again.fresh = False
    assert TokenFrames(PIPELINED, RATE, tokens=4).next("main", (again,), 0.0) is None


def test_a_right_draft_finishes_a_frame_in_its_prefill() -> None:
    machine = Machine(TokenFrames(SPECULATIVE, "freshness", tokens=4), 4)
    machine.frame(1)
    machine.frame(1)
    assert machine.finished == [(0, 4, 0), (1, 1, 3)]


def test_a_draft_is_of_the_same_robot_and_the_same_words() -> None:
    machine = Machine(TokenFrames(SPECULATIVE, "freshness", tokens=4), 4)
    for robot, words in (("a", "lift"), ("b", "push"), ("a", "lift"), ("b", "push"), ("b", "pull")):
        machine.frame(1, robot, words)
    assert [right for _, _, right in machine.finished] == [0, 0, 3, 3, 0]


def test_what_failed_or_was_dropped_is_no_draft_and_no_measure() -> None:
    policy = TokenFrames(SPECULATIVE, RATE, tokens=4)
    for change in ({"error": RuntimeError("out of memory")}, {"status": Status.CANCELLED}):
        request = make_act()
        batch = policy.next("main", (request,), 0.0)
        assert batch is not None and batch.draft == ()
        request.tokens, request.status = [1, 2, 3, 4], Status.FINISHED
        vars(request).update(change)
        policy.ran(batch, 0.0)
    assert policy.accepted == 0.0
    assert policy.next("main", (make_act(),), 0.0).draft == ()


def test_a_still_scene_turns_auto_to_speculation_and_a_moving_one_back() -> None:
    policy = TokenFrames(AUTO, "freshness", tokens=4, times=SERVER)
    machine = Machine(policy, 4)
    assert policy.schedule() == "sequential"
    for _ in range(4):
        machine.frame(0)
    assert policy.schedule() == "speculative"
    assert machine.finished[-1] == (3, 1, 3)
    for number in range(4, 60):
        machine.frame(number)
    assert policy.accepted < 0.5


def test_auto_learns_from_frames_that_were_not_drafted() -> None:
    policy = TokenFrames(AUTO, "rate", tokens=4, times=SERVER)
    machine = Machine(policy, 4)
    assert policy.schedule() == "pipelined"
    for _ in range(12):
        machine.frame(0)
    assert policy.schedule() == "speculative"


@pytest.mark.parametrize(
    ("mode", "prefer", "riders", "drafts"),
    [
        ("sequential", "rate", 0, (0,)),
        ("pipelined", "freshness", 6, (0,)),
        ("speculative", "freshness", 0, (0, 6)),
        ("speculative", "rate", 6, (0, 6)),
        ("auto", "freshness", 6, (0, 6)),
    ],
)
def test_what_forwards_have_to_have_room_for(
    mode: str, prefer: str, riders: int, drafts: tuple[int, ...]
) -> None:
    assert (most_riders(mode, prefer, K), draft_lengths(mode, K)) == (riders, drafts)
    assert draft_lengths(mode, 1) == (0,)
