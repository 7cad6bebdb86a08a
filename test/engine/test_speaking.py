"""Questions while acting: several at once, in what a frame leaves over, and never before its action."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from builders import make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.loops import InferenceLoops, Pace, Ports
from vla_accel_ros.engine.speaking import MOST_WAITING, Moment, Speaking, Text
from vla_accel_ros.engine.types import Observation
from vla_accel_ros.engine.way import PATIENCE_S, RightOfWay

POLICY = make_policy("pi05")
TICK_S = 1 / 1024
QUESTIONS = ("put the red block", "follow the green pad", "holding the blue block")


@dataclass
class Frame:
    """A frame in which looking at the clock takes a tick, and `left_s` are left before the next."""

    left_s: float = 100.0
    served: bool = True
    now_s: float = 0.0
    texts: list[Text] = field(default_factory=list)

    def clock(self) -> float:
        self.now_s += TICK_S
        return self.now_s

    def speaking(self, engine: Engine, narrate_s: float | None = None, max_tokens: int = 6) -> Speaking:
        moment = Moment(lambda: self.served, lambda: self.now_s + self.left_s, self.clock)
        return Speaking(engine, self.texts.append, RightOfWay(), moment, narrate_s, max_tokens)

    def said(self, prompt: str) -> str:
        (text,) = [text.text for text in self.texts if text.finished and text.prefix.instruction == prompt]
        return text


def make_engine(answers: int = 4) -> Engine:
    return Engine(POLICY, slots=3 + answers, steps=1, answers=answers)


def alone(observation: Observation, question: str, tokens: int = 6) -> str:
    engine = make_engine()
    with engine.observe(observation) as prefix, engine.reword(prefix, question) as reworded:
        return "".join(engine.ask(reworded, max_tokens=tokens))


def test_questions_are_answered_together_and_as_if_alone() -> None:
    engine, frame = make_engine(), Frame(left_s=0.01)
    speaking = frame.speaking(engine)
    expected = {}
    for number, question in enumerate(QUESTIONS):  # one a frame, each about its own
        observation = make_observation(number, stamp_ns=number)
        engine.observe(observation).release()
        speaking.ask(question)
        assert speaking.turn()
        expected[question] = alone(observation, question)
    while speaking.turn():
        pass
    assert {question: frame.said(question) for question in QUESTIONS} == expected
    about = {text.prefix.instruction: (text.prefix.version, text.prefix.stamp_ns) for text in frame.texts}
    assert list(about.values()) == [(0, 0), (1, 1), (2, 2)]
    growing = [[t.text for t in frame.texts if t.request_id == number] for number in range(3)]
    assert all(later.startswith(text) for texts in growing for text, later in itertools.pairwise(texts))
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_how_many_tokens_a_frame_has_follows_from_what_is_left_of_it() -> None:
    engine = make_engine()
    engine.observe(make_observation()).release()
    made = []
    for left_s in (0.0, 0.01, 0.03, 100.0):
        frame = Frame(left_s)
        speaking = frame.speaking(engine, max_tokens=64)
        speaking.ask(QUESTIONS[0])
        answer_before = engine.runner.text.places
        speaking.turn()
        assert engine.runner.text.places == answer_before - 1 or frame.texts[-1].finished
        made.append(len(speaking._open[0].answer.tokens) if speaking._open else 64)
        speaking.end()
    assert made[0] == 0 < made[1] < made[2] < made[3]


def test_nothing_is_said_before_the_newest_frame_was_acted_on_but_for_a_token_now_and_then() -> None:
    engine, frame = make_engine(), Frame(served=False)
    speaking = frame.speaking(engine)
    engine.observe(make_observation()).release()
    speaking.ask(QUESTIONS[0])
    assert speaking.turn()  # it is begun
    assert not speaking.turn() and not frame.texts
    for tokens in (1, 2):
        frame.now_s += PATIENCE_S
        assert speaking.turn() and not speaking.turn()
        assert len(speaking._open[0].answer.tokens) == tokens
    frame.served = True
    assert speaking.turn() and frame.said(QUESTIONS[0]) == alone(make_observation(), QUESTIONS[0])


def test_after_a_token_slower_than_a_frame_there_are_as_many_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, frame = make_engine(answers=1), Frame(left_s=1 / 30)
    speaking = frame.speaking(engine, max_tokens=64)
    engine.observe(make_observation()).release()
    speak, slow, said = engine.speak, [False], [0]

    def timed() -> bool:
        frame.now_s += 0.04 if slow.pop() else 0.002
        slow.append(False)
        said[0] += 1
        return speak()

    def second() -> int:
        """Tokens in thirty frames, in which there is always a question."""
        before = said[0]
        for _ in range(30):
            if engine.runner.text.places:
                speaking.ask(QUESTIONS[0])
            speaking.turn()
            frame.now_s += frame.left_s
        return said[0] - before

    monkeypatch.setattr(engine, "speak", timed)
    usual = second()
    slow[0] = True
    assert second() < usual
    second()
    assert second() == pytest.approx(usual, rel=0.5) and usual > 30
    speaking.end()


class Way(RightOfWay):
    """A right of way for which one waits while something happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def give(self) -> bool:
        self.meanwhile()
        return super().give()


def test_a_question_cancelled_while_the_way_is_waited_for_is_not_answered() -> None:
    engine, frame = make_engine(), Frame()
    moment = Moment(lambda: True, lambda: frame.now_s + 100.0, frame.clock)
    speaking = Speaking(engine, frame.texts.append, Way(lambda: speaking.cancel()), moment, None, 6)
    engine.observe(make_observation()).release()
    for _ in range(2):
        speaking.ask(QUESTIONS[0])
        assert not speaking.turn()
    assert not frame.texts and engine.runner.text.places == 4


def test_a_question_is_about_the_frame_that_is_the_newest_when_the_way_is_free() -> None:
    engine, frame = make_engine(), Frame()
    moment = Moment(lambda: True, lambda: frame.now_s + 100.0, frame.clock)
    come = [make_observation(1, stamp_ns=1)]
    way = Way(lambda: come and engine.observe(come.pop()).release())
    speaking = Speaking(engine, frame.texts.append, way, moment, None, 6)
    engine.observe(make_observation(stamp_ns=0)).release()
    speaking.ask(QUESTIONS[0])
    assert speaking.turn()
    assert {text.prefix.stamp_ns for text in frame.texts} == {1}


def test_what_nobody_asked_for_comes_at_its_pace_and_after_questions() -> None:
    engine, frame = make_engine(answers=1), Frame()
    speaking = frame.speaking(engine, narrate_s=5.0)
    for number in range(3):
        engine.observe(make_observation(number, instruction="reach the red block")).release()
        if not number:
            speaking.ask(QUESTIONS[0])
        speaking.turn()
        speaking.turn()
    prompts = [text.prefix.instruction for text in frame.texts if text.finished]
    assert prompts == [QUESTIONS[0], "reach the red block"]
    frame.now_s += 5.0
    assert speaking.turn()
    assert frame.texts[-1].finished and frame.texts[-1].prefix.version == 2
    frame.now_s += 5.0
    assert not speaking.turn()  # nothing new was seen


def test_the_instruction_as_a_question_needs_no_prefill_of_its_own() -> None:
    engine, frame = make_engine(), Frame(left_s=0.0)
    speaking = frame.speaking(engine)
    engine.observe(make_observation(instruction="reach the red block")).release()
    speaking.ask("reach the red block")
    assert speaking.turn()
    assert engine.runner.text.places == 3 and engine.runner.pool.free == engine.runner.pool.slots - 1
    speaking.end()


def test_more_questions_than_places_wait_and_are_answered_in_turn() -> None:
    engine, frame = make_engine(answers=2), Frame()
    speaking = frame.speaking(engine)
    engine.observe(make_observation()).release()
    questions = [f"put block {number}" for number in range(5)]
    for question in questions:
        speaking.ask(question)
    while speaking.turn():
        pass
    assert sorted(text.prefix.instruction for text in frame.texts if text.finished) == questions


def test_cancelled_answers_say_no_more_and_hold_nothing() -> None:
    engine, frame = make_engine(answers=2), Frame(left_s=0.01)
    speaking = frame.speaking(engine, max_tokens=64)
    engine.observe(make_observation()).release()
    for question in QUESTIONS:
        speaking.ask(question)
    speaking.turn()
    said = len(frame.texts)
    assert said and speaking.cancel() == 3
    assert not speaking.turn() and len(frame.texts) == said
    assert engine.runner.text.places == 2 and engine.runner.pool.free == engine.runner.pool.slots - 1
    speaking.ask(QUESTIONS[0])
    assert speaking.turn()
    speaking.end()


def test_what_is_not_taken() -> None:
    engine, frame = make_engine(), Frame()
    speaking = frame.speaking(engine)
    with pytest.raises(ValueError, match="the question is empty"):
        speaking.ask(" ")
    for _ in range(MOST_WAITING):
        speaking.ask("red")
    with pytest.raises(ValueError, match="16 questions wait already: 'blue' is not taken"):
        speaking.ask("blue")
    assert not speaking.turn()  # nothing was seen that they could be about


def test_in_the_loops_every_frame_is_acted_on_while_two_questions_are_answered() -> None:
    engine = make_engine()
    observations = [make_observation(number) for number in range(12)]
    acted: list[int] = []
    said: list[Text] = []

    def nothing(*_: object) -> None:
        return None

    ports = Ports(
        lambda: observations.pop() if observations else None,
        nothing,
        nothing,
        lambda chunk, _: acted.append(chunk.kv_version),
        said.append,
        nothing,
    )
    loops = InferenceLoops(engine, ports, Pace(10.0), Pace(10.0), None, max_tokens=3)
    assert loops.speaking is not None
    for question in QUESTIONS[:2]:
        loops.speaking.ask(question)
    while observations:
        assert loops.see() and loops.act()
        loops.speaking.turn()
    assert acted == list(range(12))
    assert {text.prefix.instruction for text in said if text.finished} == set(QUESTIONS[:2])
    assert {text.prefix.version for text in said} == {0}
