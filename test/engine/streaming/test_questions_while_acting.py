"""Questions while acting, several at once, in the time that frames and actions leave over: a stream over an
engine, on a time that the test moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import make_observation, make_policy
from wishes import counted

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import ASK, DECODE, OBSERVE, MicroBatch, Pace
from vla_accel_ros.engine.rules.text import PATIENCE_S
from vla_accel_ros.engine.scheduler import Scheduler, Stream
from vla_accel_ros.engine.streaming.ports import Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation

POLICY = make_policy("pi05")


QUESTIONS = ("put the red block", "follow the green pad", "holding the blue block")


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
        runner: Any = self.engine.runner
        self.during: Callable[[MicroBatch], object] = lambda batch: None
        run = runner.run

        def timed(batch: MicroBatch) -> None:
            self.during(batch)
            run(batch)
            self.now_s += self.token_s if batch.stage == DECODE else 0.0

        runner.run = timed
        self.scheduler = Scheduler(runner, runner.rules(), clock=lambda: self.now_s)
        self.scheduler.streams[""] = Stream(due_s=lambda: self.due_s)
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
        self.counts = counted(self.scheduler)

    def see(self, observation: Observation) -> None:
        self.observations.append(observation)
        assert self.stream.run_vision()

    def turn(self, left_s: float = math.inf) -> int:
        """Whatever may run while the next frame is due in left_s; how many tokens."""
        self.due_s, tokens = self.now_s + left_s, 0
        while ran := self.scheduler.step():
            tokens += ran[0].want == ASK and self.counts[ran[0]] > 1
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
