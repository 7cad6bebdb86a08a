"""Questions to a robot that acts: answered at once by the node, about frames it acts on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import make_checkpoint, make_config
from running import NodeProcess
from stack import CALM_SENSORS

from vla_accel_msgs.msg import LanguageOutput
from vla_accel_ros.nodes.clients.operator import Operator

QUESTIONS = ("put the red block", "follow the green pad")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model", make_config())


def finished(operator: Operator) -> dict[str, LanguageOutput]:
    """Whole answers by their question."""
    return {answer.prompt: answer for answer in operator.answers if answer.finished}


@pytest.mark.parametrize("fast", [False, True])
def test_two_questions_at_once_are_answered_while_every_frame_is_acted_on(
    start: Callable[..., NodeProcess], operator: Operator, model: Path, fast: bool
) -> None:
    start("sim_robot", **CALM_SENSORS)
    node = start(
        "inference",
        autostart=True,
        model=str(model),
        device="cpu",
        fast=fast,
        steps=1,
        vision_hz=5.0,
        language_hz=0.0,
        answer_tokens=32,
    )
    operator.instruct("reach the red block")
    operator.wait(lambda: len(operator.chunks) >= 3, 180.0, "three chunks")
    assert not operator.answers  # nobody has asked
    for question in QUESTIONS:
        operator.ask(question)
    operator.wait(lambda: set(QUESTIONS) <= finished(operator).keys(), 180.0, "both answers")
    last = max(answer.kv_version for answer in operator.answers)
    operator.wait(
        lambda: operator.chunks[-1].chunk.kv_version > last, 90.0, "a chunk of a frame after the answers"
    )
    versions = [received.chunk.kv_version for received in operator.chunks]
    stamps_ns = {received.chunk.kv_version: received.chunk.stamp_ns for received in operator.chunks}
    assert versions == sorted(set(versions))
    assert len(versions) >= 0.7 * (versions[-1] - versions[0] + 1)  # no frame waits for words
    for answer in finished(operator).values():
        stamp_ns = answer.header.stamp.sec * 1_000_000_000 + answer.header.stamp.nanosec
        assert stamps_ns.get(answer.kv_version, stamp_ns) == stamp_ns
    requests = {answer.request_id for answer in operator.answers}
    assert len(requests) == 2 and "loop: " not in node.log
    for words in ("preparing fast stages, 1 of 4: prefix of 2 images", "captured stages need a GPU"):
        assert (words in node.log) == fast


def test_answers_are_broken_off_and_refused_questions_are_told(
    start: Callable[..., NodeProcess], operator: Operator, model: Path
) -> None:
    start("sim_robot", **CALM_SENSORS)
    node = start("inference", autostart=True, model=str(model), steps=1, language_hz=0.0, answer_tokens=512)
    operator.instruct("reach the red block")
    operator.wait(lambda: operator.chunks, 180.0, "a chunk")
    operator.ask(" ")
    node.wait_for_log("question: the question is empty")
    operator.ask(QUESTIONS[0])
    operator.wait(lambda: operator.answers, 90.0, "the beginning of an answer")
    assert operator.cancel_answers() in (
        "cancelled: 1 answers and waiting questions",
        "cancelled: 0 answers and waiting questions",  # it may have come to its end before
    )
    operator.ask(QUESTIONS[1])
    operator.wait(lambda: operator.answers[-1].prompt == QUESTIONS[1], 90.0, "an answer after that")
