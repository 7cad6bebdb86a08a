"""What others sent is quoted in at most 500 letters, in every message and log line of a node."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import rclpy
from rcl_interfaces.msg import Log
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, RobotDescription, Round, TextAnswer
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.diagnostics import OK, status
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.brief_log import BriefLogs
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.arrivals import Inputs

LONG = "begin " + "x" * 5_000_000 + " end: do this"
ROUND = Round("engine", "/left", 1, 1)
CONTRACT = Contract.load(demo_contract())


def test_a_long_sentence_keeps_its_beginning_its_end_and_says_how_long_it_was() -> None:
    short = brief(LONG)
    assert len(short) <= 500 and short.startswith("begin x") and short.endswith("end: do this")
    assert str(len(LONG)) in short
    assert [brief(text) for text in ("", "x" * 500)] == ["", "x" * 500]


def admission() -> list[str]:
    message = fleet_convert.admission_to_message(Admission("engine", "/left", "s", False, LONG))
    sent, message.reason = message.reason, LONG  # of a scheduler that is not ours
    return [sent, fleet_convert.admission_from_message(message).reason]


def refusal() -> list[str]:
    message = fleet_convert.answer_to_message(ChunkAnswer(ROUND, 1, "s", 0, refusal=LONG), CONTRACT)
    sent, message.refusal = message.refusal, LONG
    return [sent, fleet_convert.answer_from_message(message, CONTRACT).refusal]


def refused_question() -> list[str]:
    message = fleet_convert.text_to_message(TextAnswer(ROUND, "what?", 0, LONG, refused=True), "s")
    sent, message.text = message.text, LONG
    refusal = convert.refusal_to_message(LONG, LONG, 0)
    return [sent, fleet_convert.text_from_message(message, "e", "/left").text, refusal.text, refusal.prompt]


def inputs() -> list[str]:
    message = convert.inputs_to_message(Inputs(0, problems={"a": LONG}, waiting_for=LONG), ("a",))
    sent = [*message.problems, message.waiting_for]
    message.problems, message.waiting_for = [LONG], LONG
    received = convert.inputs_from_message(message)
    return [*sent, *received.problems.values(), received.waiting_for]


def diagnostics() -> list[str]:
    line = status("motion", OK, LONG, {"said": LONG})
    return [line.message, line.values[0].value]


@pytest.mark.parametrize("sentences", [admission, refusal, refused_question, inputs, diagnostics])
def test_no_message_carries_a_longer_sentence(sentences: Callable[[], list[str]]) -> None:
    for words in sentences():
        assert len(words) <= 500 and words.startswith("begin x") and words.endswith("do this")


def test_an_answer_is_no_sentence_about_a_fault_and_stays_whole() -> None:
    message = fleet_convert.text_to_message(TextAnswer(ROUND, "what?", 0, "x" * 2000), "s")
    assert fleet_convert.text_from_message(message, "e", "/left").text == "x" * 2000
    description = RobotDescription("engine", "/left", "x" * 10_000)
    assert len(fleet_convert.description_to_message(description, 0).contract) == 10_000


class Speaker(BriefLogs, Node):
    """A node."""


def test_no_line_of_a_nodes_log_is_longer_and_lines_of_all_levels_are_logged(
    ros_domain: int, capfd: pytest.CaptureFixture[str]
) -> None:
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Speaker("speaker", context=context)
    try:
        for level in ("info", "warning", "error", "info"):
            assert getattr(node.get_logger(), level)(f"{level} {LONG}\nof two lines")
    finally:
        node.destroy_node()
        rclpy.shutdown(context=context)
    sys.stderr.flush()
    logged = "".join(capfd.readouterr())
    lines = [line for line in logged.splitlines() if "begin" in line]
    assert [line.split("begin")[0].split()[-1] for line in lines] == ["info", "warning", "error", "info"]
    assert all(len(line) < 600 and line.endswith("end: do this") for line in lines)
    assert logged.count("of two lines") == 4


def test_a_line_names_its_caller_without_a_look_at_the_disk(
    ros_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = rclpy.Context()
    rclpy.init(context=context)
    node, listener = Speaker("speaker", context=context), Node("listener", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(listener)
    lines: list[Log] = []
    listener.create_subscription(Log, "/rosout", lines.append, qos.ALL_LATCHED)
    try:
        with monkeypatch.context() as patched:
            patched.delattr("inspect.getframeinfo")  # it looks for the files of all modules
            node.get_logger().warning("who said that")
        while not lines:
            executor.spin_once(1.0)
    finally:
        executor.shutdown()
        for used in (node, listener):
            used.destroy_node()
        rclpy.shutdown(context=context)
    (line,) = lines
    caller = test_a_line_names_its_caller_without_a_look_at_the_disk
    assert (line.msg, line.function, line.file) == ("who said that", caller.__name__, __file__)
