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


def test_node_walks_through_its_states_and_back_twice_and_is_shut_down_by_a_manager(start, operator):
    process = start("trajectory")
    for _ in range(2):
        assert state(operator, "trajectory") == State.PRIMARY_STATE_UNCONFIGURED
        assert change(operator, "trajectory", CONFIGURE)
        assert state(operator, "trajectory") == State.PRIMARY_STATE_INACTIVE
        assert change(operator, "trajectory", ACTIVATE)
        assert state(operator, "trajectory") == State.PRIMARY_STATE_ACTIVE
        operator.wait(lambda: operator.loops, 90.0, "statistics of an active node")
        assert change(operator, "trajectory", DEACTIVATE)
        assert change(operator, "trajectory", CLEANUP)
    assert change(operator, "trajectory", CONFIGURE) and change(operator, "trajectory", ACTIVATE)
    assert change(operator, "trajectory", Transition.TRANSITION_ACTIVE_SHUTDOWN)
    assert state(operator, "trajectory") == State.PRIMARY_STATE_FINALIZED
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


def test_node_refuses_a_wrong_contract_or_model_until_it_is_fixed(start, operator, tmp_path):
    contract = tmp_path / "wrong.yaml"
    contract.write_text(Path(demo_contract()).read_text().replace("rate_hz: 100", "rate_hz: -1"))
    cut = make_checkpoint(tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    process = start("inference", contract=str(contract), model=str(tmp_path))
    for parameter, value, words in (
        ("contract", str(contract), "joint_states.rate_hz"),
        ("contract", "", "is no checkpoint that is known here"),
        ("model", str(cut), "is not a readable safetensors file"),
    ):
        assert set_parameter(operator, "inference", parameter, value).successful
        assert not change(operator, "inference", CONFIGURE)
        assert state(operator, "inference") == State.PRIMARY_STATE_UNCONFIGURED
        process.wait_for_log(words)

        def told(words: str = words) -> bool:
            line = operator.diagnostics.get("inference: inference")
            return line is not None and words in line.message

        operator.wait(told, 90.0, f"{words!r} in the diagnostics")
    model = str(make_checkpoint(tmp_path / "model"))
    assert set_parameter(operator, "inference", "model", model).successful
    assert change(operator, "inference", CONFIGURE) and not operator.chunks


def test_parameter_is_what_the_node_does_at_any_time(start, operator):
    """What is read when the node is configured can be set only before; `use_sim_time` is such a parameter."""
    published: list[dict] = []
    operator.node.create_subscription(
        String, "parameters", lambda m: published.append(json.loads(m.data)["parameters"]), qos.LATCHED
    )
    node = start("trajectory", autostart=True, check_controllers=False)

    def asked() -> str:
        request = GetParameters.Request(names=["mode"])
        return call(operator, GetParameters, "trajectory/get_parameters", request).values[0].string_value

    def done() -> str:
        return operator.wait(lambda: operator.motions, 90.0, "motion")[-1].mode

    operator.wait(lambda: operator.motions and published, 90.0, "active node")
    for transition in (None, DEACTIVATE, ACTIVATE):  # in each of these states they would not be read
        assert transition is None or change(operator, "trajectory", transition)
        for name, value, other in (("mode", "blend", "async"), ("use_sim_time", False, True)):
            refused = set_parameter(operator, "trajectory", name, other)
            assert not refused.successful and f"'{name}'" in refused.reason and repr(value) in refused.reason
            assert set_parameter(operator, "trajectory", name, value).successful  # as it is
        assert asked() == done() == published[-1]["mode"] == "blend"
    assert "ROS time jumped" not in node.log
    assert change(operator, "trajectory", DEACTIVATE) and change(operator, "trajectory", CLEANUP)
    refused = set_parameter(operator, "trajectory", "mode", "leap")
    assert not refused.successful and "block, async, blend" in refused.reason
    assert not set_parameter(operator, "trajectory", "blend_s", 99.0).successful
    assert not set_parameter(operator, "trajectory", "autostart", False).successful
    assert set_parameter(operator, "trajectory", "mode", "async").successful
    assert change(operator, "trajectory", CONFIGURE) and change(operator, "trajectory", ACTIVATE)
    operator.wait(lambda: done() == published[-1]["mode"] == "async", 90.0, "the other mode")
    assert asked() == "async"
    assert change(operator, "trajectory", DEACTIVATE) and change(operator, "trajectory", CLEANUP)
    assert set_parameter(operator, "trajectory", "use_sim_time", True).successful
    assert change(operator, "trajectory", CONFIGURE)


def test_the_clock_of_a_node_without_a_lifecycle_stays_what_it_was_started_with(start, operator):
    start("sim_robot")
    refused = set_parameter(operator, "sim_robot", "use_sim_time", True)
    assert not refused.successful and "'use_sim_time'" in refused.reason and "restart" in refused.reason


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
    finding = "/action_chunk is offered reliability best_effort by /operator but we request reliable"
    process.wait_for_log(f"{finding}, so nothing arrives; have it offer reliability reliable")
    operator.wait(lambda: finding in graph(operator, "trajectory"), 90.0, "word of it in the diagnostics")


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
