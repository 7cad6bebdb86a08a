"""Text gets the time that frames and actions leave over: questions while acting, several at once.

First the policy by itself, on a time that the test moves; then a stream over an engine, on such a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from builders import make_observation, make_policy
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.lane import Stream
from vla_accel_ros.engine.policies.chunks import WholeChunks
from vla_accel_ros.engine.policies.text import AGAIN_S, MARGIN_S, PATIENCE_S, SHARE, TOKEN_S, TextInSlack
from vla_accel_ros.engine.profile import FORGET, Profile
from vla_accel_ros.engine.request import ACT, ASK, DECODE, OBSERVE, PREFILL, MicroBatch, Request
from vla_accel_ros.engine.scheduling.scheduler import Scheduler
from vla_accel_ros.engine.streaming.ports import Pace, Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation

POLICY = make_policy("pi05")
QUESTIONS = ("put the red block", "follow the green pad", "holding the blue block")


def asked(submitted_s: float = 0.0, begun: bool = False, priority: int = 0) -> Request:
    """A question as the scheduler would hand it to the policy."""
    request = Request(ASK, priority=priority)
    request.submitted_s = request.begun_s = submitted_s
    request.begun = begun
    if begun:
        request.stage = DECODE
    return request


def acting() -> Request:
    request = Request(ACT, stream=True)
    request.fresh = True
    return request


class Lane:
    """What a scheduler does with the policy, in time that only micro-batches take."""

    def __init__(self, takes: Callable[[MicroBatch], float], expected_s: float | None = None) -> None:
        known = {} if expected_s is None else {("ask.decode", 1): expected_s}
        self.profile = Profile(known)
        self.policy, self.takes, self.now_s = TextInSlack(WholeChunks(), self.profile), takes, 0.0

    def step(self, ready: Sequence[Request], due_s: float = math.inf) -> MicroBatch | None:
        batch = self.policy.next("main", ready, self.now_s, due_s)
        if batch is not None:
            took_s = self.takes(batch)
            self.now_s += took_s
            self.profile.note(batch.kind, len(batch.requests), took_s)
            self.policy.ran(batch, took_s)
        return batch

    def fill(self, ready: Callable[[], Sequence[Request]], due_s: float) -> int:
        """Tokens until there is nothing more to do before due_s."""
        made = 0
        while (batch := self.step(ready(), due_s)) is not None:
            made += batch.kind == "ask.decode"
        return made


def patient(lane: Lane) -> Lane:
    """No token is overdue: only slack counts."""
    lane.policy._patience_s = math.inf
    return lane


def test_a_token_fits_that_ends_with_the_margin_before_the_next_frame() -> None:
    answer = asked(begun=True)
    for left_s, fits in ((-1.0, 0), (0.0, 0), (2.0, 0), (2.0 + MARGIN_S, 1), (5.0, 2), (9.5, 4), (99.0, 49)):
        lane = patient(Lane(lambda batch: 2.0, expected_s=2.0))
        assert lane.fill(lambda: [answer], left_s) == fits, left_s


def test_longer_tokens_count_at_once_and_shorter_ones_slowly() -> None:
    profile = Profile({("ask.decode", 1): 1.0})
    profile.note("ask.decode", 1, 3.0)
    assert profile.expected_s("ask.decode", 1, TOKEN_S) == 3.0
    profile.note("ask.decode", 1, 1.0)
    assert profile.expected_s("ask.decode", 1, TOKEN_S) == pytest.approx(3.0 - 2.0 * FORGET)


def test_a_number_of_answers_that_was_never_measured_is_expected_to_take_what_more_of_them_took() -> None:
    profile = Profile({("ask.decode", 1): 1.0, ("ask.decode", 4): 3.0})
    expected = [profile.expected_s("ask.decode", batch, TOKEN_S) for batch in (1, 2, 4, 8)]
    assert expected == [1.0, 3.0, 3.0, 3.0]
    assert Profile().expected_s("ask.decode", 1, TOKEN_S) == TOKEN_S


def test_durations_that_cannot_be_are_refused() -> None:
    for seconds in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"ask.decode of 2 takes {seconds} s; give a positive number"):
            Profile({("ask.decode", 2): seconds})


def test_no_text_no_token() -> None:
    lane = Lane(lambda batch: 1.0)
    assert lane.fill(list, 9.0) == 0 and lane.now_s == 0.0


def test_texts_that_end_leave_the_rest_free() -> None:
    lane, answer, left = Lane(lambda batch: 1.0), asked(begun=True), iter(range(3))
    assert lane.fill(lambda: [answer] if next(left, None) is not None else [], 9.0) == 3
    assert lane.now_s == 3.0


@given(
    takes=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=30),
    guess=st.floats(0.1, 5.0),
    due_s=st.floats(0.0, 40.0),
)
def test_a_frame_waits_for_no_more_than_one_token_that_was_misjudged(
    takes: list[float], guess: float, due_s: float
) -> None:
    times = itertools.chain(takes, itertools.repeat(takes[-1]))
    lane, answer = patient(Lane(lambda batch: next(times), guess)), asked(begun=True)
    made = lane.fill(lambda: [answer], due_s)
    if made:
        excess = max(0.0, max(takes) - min(guess, min(takes)))
        assert lane.now_s <= due_s - MARGIN_S + excess + 1e-9
    if all(take <= guess for take in takes):
        assert lane.now_s <= max(0.0, due_s - MARGIN_S) + 1e-9


def test_frames_and_actions_go_first_and_questions_before_tokens() -> None:
    lane = Lane(lambda batch: 0.001)
    act, frame, answer = acting(), Request(OBSERVE), asked(begun=True)
    low, high = asked(), asked(priority=1)
    order = []
    ready = [answer, low, high, frame, act]
    while ready and (batch := lane.step(ready)) is not None:
        order.append((batch.stage, batch.requests))
        if batch.requests == (answer, low, high):
            break
        for request in batch.requests:
            request.begun = True
            if request.want == ASK:
                request.stage = DECODE
            else:
                ready.remove(request)
    assert order[0][1] == (act,) and order[1][1] == (frame,)
    assert order[2:4] == [(PREFILL, (high,)), (PREFILL, (low,))]
    assert order[4] == (DECODE, (answer, low, high))  # one forward for all of them


def test_where_actions_leave_no_time_text_has_a_token_now_and_then_and_its_share_at_most() -> None:
    """There is always something urgent; a token takes longer than a frame."""
    answer, texts, late = asked(begun=True), [], []
    lane = Lane(lambda batch: 0.04 if batch.requests[0].want == ASK else 0.02)
    while lane.now_s < 60.0:
        before_s = lane.now_s
        batch = lane.step([acting(), answer], lane.now_s)
        assert batch is not None
        if batch.requests[0] is answer:
            texts.append(before_s)
            late.append(before_s - (texts[-2] if len(texts) > 1 else 0.0))
    assert 0.8 * SHARE <= len(texts) * 0.04 / 60.0 <= SHARE
    assert max(late) <= max(PATIENCE_S, 0.04 / SHARE) + 0.06


def test_a_question_that_waits_long_is_begun_whatever_is_urgent() -> None:
    lane, question = Lane(lambda batch: 0.01), asked(submitted_s=0.0)
    while (batch := lane.step([acting(), question])) is not None and batch.requests[0] is not question:
        pass
    assert PATIENCE_S <= lane.now_s - 0.01 < PATIENCE_S + 0.02


def test_the_lane_is_told_when_to_ask_again() -> None:
    """A frame that is late may not come at all: who has text does not wait for it."""
    policy = TextInSlack(WholeChunks(), Profile())
    assert policy.wake_s([], 1.0) == math.inf == policy.wake_s([acting()], 1.0)
    assert policy.wake_s([asked(begun=True)], 0.0) == AGAIN_S
    assert policy.wake_s([asked(submitted_s=1.0)], 1.0 + PATIENCE_S) == pytest.approx(1.0 + PATIENCE_S)


def test_after_a_token_slower_than_a_frame_there_are_as_many_again() -> None:
    slow: list[float] = []
    lane, answer = Lane(lambda batch: slow.pop() if slow else 0.002), asked(begun=True)

    def second() -> int:
        """Tokens in thirty frames, in which there is always an open answer."""
        made = 0
        for _ in range(30):
            due_s = lane.now_s + 1 / 30
            made += lane.fill(lambda: [answer], due_s)
            lane.now_s = max(lane.now_s, due_s)
        return made

    second()
    usual = second()
    slow.append(0.04)
    assert second() < usual
    second()
    assert second() == pytest.approx(usual, rel=0.5) and usual > 30


class Robot:
    """A stream over an engine, stepped on a time in which a token takes token_s, and all else nothing."""

    def __init__(
        self, answers: int = 4, narrate_s: float | None = None, max_tokens: int = 6, token_s: float = 0.002
    ) -> None:
        self.engine = Engine(POLICY, slots=3 + answers, steps=1, answers=answers, answer_tokens=64)
        self.now_s, self.due_s, self.token_s = 0.0, math.inf, token_s
        self.texts: list[Text] = []
        self.chunks: list[Chunk] = []
        self.observations: list[Observation] = []
        runner, profile = self.engine.runner, Profile()
        self.during: Callable[[MicroBatch], object] = lambda batch: None
        run = runner.run

        def timed(batch: MicroBatch) -> None:
            self.during(batch)
            run(batch)
            self.now_s += self.token_s if batch.stage == DECODE else 0.0

        runner.run = timed
        policy = runner.scheduling(profile)
        self.scheduler = Scheduler(runner, policy, profile, clock=lambda: self.now_s)
        self.scheduler.streams.running[""] = Stream(due_s=lambda: self.due_s)
        self.engine.scheduler = self.scheduler
        ports = Ports(
            observe=lambda: self.observations.pop(0) if self.observations else None,
            observed=lambda: None,
            newest_state=lambda: None,
            on_chunk=lambda chunk, _: self.chunks.append(chunk),
            on_text=self.texts.append,
            on_error=lambda name, error: pytest.fail(f"{name}: {error}"),
        )
        language = None if narrate_s is None else Pace(1.0 / narrate_s)
        self.stream = Streaming(self.engine, ports, Pace(10.0), Pace(10.0), language, max_tokens)
        self.stream._running = True

    def see(self, observation: Observation) -> None:
        self.observations.append(observation)
        assert self.stream.see()

    def turn(self, left_s: float = math.inf) -> int:
        """Whatever may run while the next frame is due in left_s; how many tokens."""
        self.due_s, tokens = self.now_s + left_s, 0
        while ran := self.scheduler.step():
            tokens += ran[0].want == ASK and ran[0].done > 1
        self.deliver()
        return tokens

    def deliver(self) -> None:
        while self.stream._results.waiting:
            port, what = self.stream._results.waiting.popleft()
            port(*what)

    def said(self, prompt: str) -> str:
        (text,) = [text.text for text in self.texts if text.finished and text.prefix.instruction == prompt]
        return text

    @property
    def holds_nothing(self) -> bool:
        """But the newest frame."""
        runner = self.engine.runner
        return runner.text.places == self.engine.config.answers and runner.pool.free == runner.pool.slots - 1


def alone(observation: Observation, question: str, tokens: int = 6) -> str:
    engine = Engine(POLICY, slots=4, steps=1)
    with engine.observe(observation) as prefix:
        return "".join(engine.ask(prefix, question, max_tokens=tokens))


def test_questions_are_answered_together_and_as_if_alone() -> None:
    robot, expected = Robot(), {}
    for number, question in enumerate(QUESTIONS):  # one a frame, each about its own
        observation = make_observation(number, stamp_ns=number)
        robot.see(observation)
        robot.stream.ask(question)
        assert robot.turn(0.0045) == 1
        robot.now_s = robot.due_s
        expected[question] = alone(observation, question)
    robot.turn()
    assert {question: robot.said(question) for question in QUESTIONS} == expected
    about = {text.prefix.instruction: (text.prefix.version, text.prefix.stamp_ns) for text in robot.texts}
    assert list(about.values()) == [(0, 0), (1, 1), (2, 2)]
    growing = [[t.text for t in robot.texts if t.request_id == number] for number in range(3)]
    assert all(later.startswith(text) for texts in growing for text, later in itertools.pairwise(texts))
    assert robot.holds_nothing


def test_how_many_tokens_a_frame_has_follows_from_what_is_left_of_it() -> None:
    made = []
    for left_s in (0.0, 0.01, 0.03, 100.0):
        robot = Robot(max_tokens=64)
        robot.see(make_observation())
        robot.stream.ask(QUESTIONS[0])
        made.append(robot.turn(left_s))
        assert robot.engine.runner.text.places == 3 or robot.texts[-1].finished
        robot.stream.cancel()
        assert robot.holds_nothing
    assert made[0] == 0 < made[1] < made[2] < made[3]
    assert made[1:3] == [4, 14]  # of 2 ms, with the margin


def test_an_answer_stands_still_only_for_so_long_where_nothing_is_left_over() -> None:
    robot = Robot()
    robot.see(make_observation())
    robot.stream.ask(QUESTIONS[0])
    assert robot.turn(0.0) == 0 and not robot.texts  # it is begun
    (answer,) = robot.scheduler.requests
    for tokens in (1, 2):
        robot.now_s += PATIENCE_S
        assert robot.turn(0.0) == 1 and robot.turn(0.0) == 0
        assert len(answer.tokens) == tokens
    robot.turn()
    assert robot.said(QUESTIONS[0]) == alone(make_observation(), QUESTIONS[0])


def test_a_question_cancelled_while_a_frame_is_computed_is_not_answered() -> None:
    robot = Robot()
    robot.see(make_observation())
    for _ in range(2):
        robot.during = lambda batch: batch.requests[0].want == OBSERVE and robot.stream.cancel()
        robot.stream.ask(QUESTIONS[0])
        robot.see(make_observation())
        assert robot.turn() == 0
    assert not robot.texts and robot.holds_nothing


def test_a_question_cancelled_in_its_first_micro_batch_says_nothing() -> None:
    robot = Robot()
    robot.see(make_observation())
    robot.during = lambda batch: robot.stream.cancel()
    robot.stream.ask(QUESTIONS[0])
    robot.turn()
    assert not robot.texts and robot.holds_nothing


def test_a_question_is_about_the_frame_that_is_the_newest_when_it_is_begun() -> None:
    robot = Robot()
    robot.see(make_observation(stamp_ns=0))
    robot.stream.ask(QUESTIONS[0])
    robot.see(make_observation(1, stamp_ns=1))  # frames go first
    robot.turn()
    assert {text.prefix.stamp_ns for text in robot.texts} == {1}


def test_what_nobody_asked_for_comes_at_its_pace_and_after_questions() -> None:
    robot = Robot(answers=1, narrate_s=5.0)
    for number in range(3):
        if not number:
            robot.stream.ask(QUESTIONS[0])
        robot.see(make_observation(number, instruction="reach the red block"))
        robot.turn()
    prompts = [text.prefix.instruction for text in robot.texts if text.finished]
    assert prompts == [QUESTIONS[0], "reach the red block"]
    robot.now_s += 5.0
    assert robot.turn() == 0  # nothing new was seen
    robot.see(make_observation(3, instruction="reach the red block"))
    assert robot.turn() and robot.texts[-1].finished and robot.texts[-1].prefix.version == 3
    assert len({text.request_id for text in robot.texts}) == 3 and robot.holds_nothing


def test_nothing_is_said_unasked_while_such_a_text_waits() -> None:
    robot = Robot(answers=1, narrate_s=0.001)
    robot.stream.ask(QUESTIONS[0])
    for number in range(4):
        robot.see(make_observation(number))
        robot.turn(0.0)
        robot.now_s += 0.1
    asked, unasked = robot.scheduler.requests
    assert (asked.begun, unasked.begun) == (True, False)
    robot.turn()
    assert len({text.request_id for text in robot.texts}) == 2


@pytest.mark.parametrize(("answers", "at_once"), [(4, 3), (2, 1), (1, 1)])
def test_texts_that_take_longer_than_their_period_share_their_forwards(answers: int, at_once: int) -> None:
    robot, seen = Robot(answers=answers, narrate_s=0.1, max_tokens=8), []
    for number in range(12):  # in each period of 0.1 s there is time for two tokens
        seen.append(make_observation(number, stamp_ns=number))
        robot.see(seen[-1])
        assert robot.turn(0.0055) == 2
        assert robot.engine.runner.text.places == answers - min(number + 1, at_once) or number > 2
        robot.now_s = number * 0.1 + 0.1
    about = {text.prefix.stamp_ns: text.text for text in robot.texts if text.finished}
    assert len(about) == {3: 7, 1: 3}[at_once]
    for number, said in about.items():
        assert said == alone(seen[number], seen[number].instruction, tokens=8)
    robot.turn()
    assert robot.holds_nothing


def test_a_place_is_left_to_a_question_beside_texts_that_nobody_asked_for() -> None:
    robot = Robot(answers=3, narrate_s=0.1, max_tokens=64)
    for number in range(4):
        robot.see(make_observation(number, stamp_ns=number))
        robot.turn(0.004)
        robot.now_s += 0.1
    assert robot.engine.runner.text.places == 1
    robot.stream.ask(QUESTIONS[0])
    robot.turn(0.004)
    assert robot.engine.runner.text.places == 0
    assert [text.prefix.instruction for text in robot.texts][-1] == QUESTIONS[0]


def test_texts_come_as_often_as_wanted_although_frames_do_not_come_just_then() -> None:
    robot, begun = Robot(narrate_s=0.15, max_tokens=1), 0
    for number in range(61):
        robot.now_s = 0.1 * number
        robot.see(make_observation(number))
        robot.turn()
        begun = len({text.request_id for text in robot.texts})
    assert begun == 40  # one in 0.15 s, and not in 0.2 s


def test_the_instruction_as_a_question_needs_no_prefill_of_its_own() -> None:
    robot = Robot()
    robot.see(make_observation(instruction="reach the red block"))
    robot.stream.ask("reach the red block")
    robot.turn(0.0)
    runner = robot.engine.runner
    assert runner.text.places == 3 and runner.pool.free == runner.pool.slots - 1
    robot.stream.cancel()
    assert robot.holds_nothing


def test_more_questions_than_places_wait_and_are_answered_in_turn() -> None:
    robot = Robot(answers=2)
    robot.see(make_observation())
    questions = [f"put block {number}" for number in range(5)]
    for question in questions:
        robot.stream.ask(question)
    robot.turn()
    ended = [text.prefix.instruction for text in robot.texts if text.finished]
    assert sorted(ended) == questions and robot.holds_nothing
    begun = list(dict.fromkeys(text.prefix.instruction for text in robot.texts))
    assert begun == questions


def test_cancelled_answers_say_no_more_and_hold_nothing() -> None:
    robot = Robot(answers=2, max_tokens=64)
    robot.see(make_observation())
    for question in QUESTIONS:
        robot.stream.ask(question)
    robot.turn(0.01)
    said = len(robot.texts)
    assert said and robot.stream.cancel() == 3
    assert robot.turn() == 0 and len(robot.texts) == said
    assert robot.holds_nothing
    robot.stream.ask(QUESTIONS[0])
    assert robot.turn() and robot.texts[-1].finished and robot.holds_nothing


def test_every_frame_is_acted_on_while_two_questions_are_answered() -> None:
    robot = Robot(max_tokens=3)
    robot.stream._want_chunks()
    for question in QUESTIONS[:2]:
        robot.stream.ask(question)
    for number in range(12):
        robot.see(make_observation(number))
        robot.turn(0.0045)
        robot.now_s = max(robot.now_s, robot.due_s)
    assert [chunk.kv_version for chunk in robot.chunks] == list(range(12))
    assert {text.prefix.instruction for text in robot.texts if text.finished} == set(QUESTIONS[:2])
    assert {text.prefix.version for text in robot.texts} == {0}
    assert robot.holds_nothing and np.isfinite(robot.now_s)
