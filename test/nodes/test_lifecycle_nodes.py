"""The lifecycle nodes from outside: their states, their refusals, and how they come back."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import rclpy
from builders import make_checkpoint
from calling import call, change, set_parameter, state
from lifecycle_msgs.msg import State, Transition
from rcl_interfaces.srv import GetParameters
from stand_ins import motion_of
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.params.parameter import Parameter
from vla_accel_ros.nodes.params.tables import NODES
from vla_accel_ros.nodes.running.environment import demo_contract

CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE
DEACTIVATE, CLEANUP = Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP


@pytest.mark.parametrize("node", ["inference", "trajectory"])
def test_a_node_walks_through_its_states_and_back_twice(start, operator, tmp_path, node):
    model = {"model": str(make_checkpoint(tmp_path / "model"))} if node == "inference" else {}
    process = start(node, **model)
    for _ in range(2):
        assert state(operator, node) == State.PRIMARY_STATE_UNCONFIGURED
        assert change(operator, node, CONFIGURE)
        assert state(operator, node) == State.PRIMARY_STATE_INACTIVE
        assert change(operator, node, ACTIVATE)
        assert state(operator, node) == State.PRIMARY_STATE_ACTIVE
        operator.wait(lambda: operator.loops, 90.0, "statistics of an active node")
        assert change(operator, node, DEACTIVATE)
        assert change(operator, node, CLEANUP)
    assert process.end() == 0


def test_a_model_that_was_cleaned_up_is_gone_before_another_is_loaded(start, operator, tmp_path):
    program = Path(__file__).parent / "counting_models.py"
    process = start("inference", program=program, model=str(make_checkpoint(tmp_path / "model")))
    for number in range(2):
        assert change(operator, "inference", CONFIGURE)
        process.wait_for_log(f"0 of {number} models are still there")
        assert change(operator, "inference", ACTIVATE)
        operator.wait(lambda: operator.loops, 90.0, "statistics of an active node")
        assert change(operator, "inference", DEACTIVATE)
        assert change(operator, "inference", CLEANUP)
    assert process.end() == 0


def test_a_node_that_was_shut_down_by_a_manager_ends_cleanly(start, operator):
    process = start("trajectory", autostart=True)
    operator.wait(lambda: operator.loops, 90.0, "statistics of an active node")
    assert change(operator, "trajectory", Transition.TRANSITION_ACTIVE_SHUTDOWN)
    assert state(operator, "trajectory") == State.PRIMARY_STATE_FINALIZED
    assert process.end() == 0


@pytest.mark.parametrize("transition", ["shutdown", "clean up"])
def test_a_call_that_waits_when_its_service_is_closed_does_not_end_the_node(start, operator, transition):
    process = start("trajectory", autostart=True, use_sim_time=True)  # whose clock stands: it never settles
    operator.wait(lambda: operator.motions, 90.0, "motion")
    client = operator.node.create_client(Trigger, "trajectory/release")
    operator.wait(client.service_is_ready, 90.0, "~/release")
    client.call_async(Trigger.Request())
    operator.wait(lambda: "released to others" in motion_of(operator), 90.0, "word of the release")
    if transition == "shutdown":
        assert change(operator, "trajectory", Transition.TRANSITION_ACTIVE_SHUTDOWN)
        assert state(operator, "trajectory") == State.PRIMARY_STATE_FINALIZED
    else:
        assert change(operator, "trajectory", DEACTIVATE) and change(operator, "trajectory", CLEANUP)
        assert state(operator, "trajectory") == State.PRIMARY_STATE_UNCONFIGURED
    assert process.end() == 0
    assert "a callback failed" not in process.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_is_busy_loading_is_broken_off(start, tmp_path, number):
    """A contract that never comes to its end stands for a model that takes minutes."""
    contract = tmp_path / "slow.yaml"
    os.mkfifo(contract)
    process = start("inference", contract=str(contract), autostart=True)
    with contract.open("w"):  # returns when the node has opened it, and keeps it waiting
        assert process.end(number) == 128 + number
    assert "killed: the node was still busy" in process.log


@pytest.mark.parametrize("node", ["inference", "trajectory"])
def test_a_wrong_contract_is_a_failure_with_its_sentence_and_can_be_mended(start, operator, tmp_path, node):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(demo_contract()).read_text().replace("rate_hz: 100", "rate_hz: -1"))
    model = {"model": str(make_checkpoint(tmp_path / "model"))} if node == "inference" else {}
    process = start(node, contract=str(wrong), **model)
    assert not change(operator, node, CONFIGURE)
    assert state(operator, node) == State.PRIMARY_STATE_UNCONFIGURED
    process.wait_for_log("joint_states.rate_hz")
    item = "inference" if node == "inference" else "motion"
    line = operator.wait(lambda: operator.diagnostics.get(f"{node}: {item}"), 90.0, "diagnostics")
    operator.wait(
        lambda: "joint_states.rate_hz" in operator.diagnostics[f"{node}: {item}"].message,
        90.0,
        f"the refusal in the diagnostics, last {line.message!r}",
    )
    assert set_parameter(operator, node, "contract", "").successful
    assert change(operator, node, CONFIGURE)


def test_a_wrong_model_is_a_failure_with_its_sentence(start, operator, tmp_path):
    process = start("inference", model=str(tmp_path), autostart=True)
    process.wait_for_log("is no checkpoint that is known here")
    assert state(operator, "inference") == State.PRIMARY_STATE_UNCONFIGURED


def test_a_truncated_model_is_a_failure_and_nothing_is_published(start, operator, tmp_path):
    model = make_checkpoint(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    process = start("inference", model=str(model), autostart=True)
    process.wait_for_log("is not a readable safetensors file")
    assert state(operator, "inference") == State.PRIMARY_STATE_UNCONFIGURED
    assert not operator.chunks


def test_parameters_are_validated_while_the_node_runs(start, operator):
    start("trajectory")
    refused = set_parameter(operator, "trajectory", "mode", "leap")
    assert not refused.successful and "give one of block, async, blend" in refused.reason
    assert not set_parameter(operator, "trajectory", "blend_s", 99.0).successful
    assert not set_parameter(operator, "trajectory", "autostart", True).successful
    assert set_parameter(operator, "trajectory", "mode", "async").successful


def test_a_parameter_is_what_the_node_does_at_any_time(start, operator):
    told: list[dict] = []
    operator.node.create_subscription(
        String, "parameters", lambda m: told.append(json.loads(m.data)["parameters"]), qos.LATCHED
    )
    start("trajectory", autostart=True, check_controllers=False)

    def asked() -> str:
        request = GetParameters.Request(names=["mode"])
        return call(operator, GetParameters, "trajectory/get_parameters", request).values[0].string_value

    def done() -> str:
        return operator.wait(lambda: operator.motions, 90.0, "motion")[-1].mode

    operator.wait(lambda: operator.motions and told, 90.0, "active node")
    for transition in (None, DEACTIVATE, ACTIVATE):  # in each of these states it would not be read
        assert transition is None or change(operator, "trajectory", transition)
        refused = set_parameter(operator, "trajectory", "mode", "async")
        assert not refused.successful and refused.reason == (
            "parameter 'mode' is read when the node is configured, as 'blend': deactivate, clean up, set it, "
            "configure"
        )
        assert set_parameter(operator, "trajectory", "mode", "blend").successful  # as it is
        assert asked() == done() == told[-1]["mode"] == "blend"
    assert change(operator, "trajectory", DEACTIVATE) and change(operator, "trajectory", CLEANUP)
    assert set_parameter(operator, "trajectory", "mode", "async").successful
    assert change(operator, "trajectory", CONFIGURE) and change(operator, "trajectory", ACTIVATE)
    operator.wait(lambda: done() == told[-1]["mode"] == "async", 90.0, "the other mode")
    assert asked() == "async"


def test_the_clock_of_a_configured_node_stays_what_it_was_configured_with(start, operator):
    node = start("trajectory", autostart=True, check_controllers=False)
    operator.wait(lambda: operator.motions, 90.0, "active node")
    for transition in (None, DEACTIVATE):
        assert transition is None or change(operator, "trajectory", transition)
        refused = set_parameter(operator, "trajectory", "use_sim_time", True)
        assert not refused.successful and refused.reason == (
            "parameter 'use_sim_time' is read when the node is configured, as False: deactivate, clean up, "
            "set it, configure"
        )
        assert set_parameter(operator, "trajectory", "use_sim_time", False).successful  # as it is
    assert "ROS time jumped" not in node.log
    assert change(operator, "trajectory", CLEANUP)
    assert set_parameter(operator, "trajectory", "use_sim_time", True).successful
    assert change(operator, "trajectory", CONFIGURE)


def test_the_clock_of_a_node_without_a_lifecycle_stays_what_it_was_started_with(start, operator):
    start("sim_robot")
    refused = set_parameter(operator, "sim_robot", "use_sim_time", True)
    assert not refused.successful and refused.reason == (
        "parameter 'use_sim_time' is read when the node starts, as False: restart it with another value"
    )


def test_all_parameters_of_a_configured_node_are_what_it_was_configured_with(start, operator, tmp_path):
    model = make_checkpoint(tmp_path / "model")
    start("trajectory")
    start("inference", model=str(model))
    for node in ("trajectory", "inference"):
        assert change(operator, node, CONFIGURE)
        for parameter in NODES[node]:
            other = another(parameter)
            assert not set_parameter(operator, node, parameter.name, other).successful, parameter.name


def another(parameter: Parameter) -> object:
    """A value that it may have, and has not by default."""
    default = parameter.default
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return next((choice for choice in parameter.choices if choice != default), "another")
    return (
        parameter.maximum if default != parameter.maximum and parameter.maximum is not None else default + 1
    )


def test_a_publisher_with_a_qos_that_does_not_fit_is_told(start, operator):
    process = start("trajectory", autostart=True)
    operator.node.create_publisher(ActionChunk, "action_chunk", qos.SENSOR)
    sentence = "/action_chunk is offered reliability best_effort by /operator but we request reliable"
    process.wait_for_log(f"{sentence}, so nothing arrives; have it offer reliability reliable")
    operator.wait(lambda: sentence in graph(operator, "trajectory"), 90.0, "word of it in the diagnostics")


def test_an_instruction_that_is_not_latched_is_followed_and_nothing_warns_of_it(start, operator, tmp_path):
    """As rosbridge, Foxglove and `ros2 topic pub` send it."""
    model = make_checkpoint(tmp_path / "model")
    process = start("inference", autostart=True, model=str(model))
    terminal = rclpy.create_node("terminal", context=operator.node.context)
    volatile = terminal.create_publisher(String, "instruction", qos.REPORT)
    operator.wait(lambda: volatile.get_subscription_count(), 90.0, "subscription")
    volatile.publish(String(data="reach the red block"))
    process.wait_for_log("instruction: 'reach the red block'")
    operator.instruct("reach the blue block")
    process.wait_for_log("instruction: 'reach the blue block'")
    volatile.publish(String(data="reach the red block"))
    operator.wait(lambda: process.log.count("instruction: 'reach the red block'") == 2, 90.0, "change")
    operator.wait(lambda: graph(operator, "inference"), 90.0, "diagnostics of the topics")
    terminal.destroy_node()
    assert process.log.count("instruction: 'reach the blue block'") == 1, "its copy is no news"
    assert "durability" not in process.log + graph(operator, "inference") and "QoS" not in process.log


def graph(operator: Operator, node: str) -> str:
    """What a node says about the other ends of its topics."""
    line = operator.diagnostics.get(f"{node}: graph")
    return "" if line is None else line.message
