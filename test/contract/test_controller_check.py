"""Which parameters of a controller are refused, warned about, or none of our business."""

from __future__ import annotations

from typing import Any

import pytest

from vla_accel_ros.contract.checks.controller_check import Sender, asked, judge, node_of
from vla_accel_ros.contract.checks.findings import ERROR, WARNING
from vla_accel_ros.contract.contract import Controller

JTC = Controller("arm_controller/joint_trajectory", ("a", "b"))
FORWARD = Controller("arm_positions/commands", ("a", "b"), "forward_command", 200.0)
SERVO = Controller("servo_node/delta_joint_cmds", ("a", "b"), "servo_joint", 50.0)
WELL: dict[Controller, dict[str, Any]] = {
    JTC: {
        "type": "joint_trajectory_controller/JointTrajectoryController",
        "joints": ["b", "a"],
        "command_interfaces": ["position", "velocity"],
        "interpolation_method": "splines",
        "interpolate_from_desired_state": False,
        "constraints.a.trajectory": 0.0,
    },
    FORWARD: {
        "type": "forward_command_controller/ForwardCommandController",
        "joints": ["a", "b"],
        "interface_name": "position",
    },
    SERVO: {"moveit_servo.command_in_type": "speed_units", "moveit_servo.incoming_command_timeout": 0.1},
}


@pytest.mark.parametrize("controller", WELL, ids=lambda controller: controller.kind)
def test_controller_that_does_what_it_is_sent_has_no_findings(controller):
    assert judge(controller, WELL[controller]) == []
    assert judge(controller, {}) == []


@pytest.mark.parametrize(
    ("controller", "values", "sender", "level", "fact"),
    [
        (JTC, {"joints": ["a", "x"]}, {}, ERROR, "moves a, x but the contract gives it a, b"),
        (JTC, {"joints": ["a", "b", "c"]}, {}, ERROR, "moves a, b, c but"),
        (JTC, {"interpolation_method": "none"}, {}, ERROR, "interpolation_method is none"),
        (JTC, {"type": "velocity_controllers/X"}, {}, ERROR, "takes velocities instead of trajectories"),
        (JTC, {}, {"stamp": "zero"}, ERROR, "interpolate_from_desired_state is false"),
        (JTC, {"command_interfaces": ["effort"]}, {}, WARNING, "command_interfaces are effort"),
        (
            JTC,
            {"constraints.a.trajectory": 0.01},
            {"speeds": {"a": 3.0, "b": 3.0}},
            WARNING,
            "a.trajectory is 0.01",
        ),
        (JTC, {"allow_trajectory_replacement": True}, {}, ERROR, "allow_trajectory_replacement is true"),
        (FORWARD, {"interface_name": "velocity"}, {}, ERROR, "interface_name is velocity"),
        (FORWARD, {"joints": ["b", "a"]}, {}, ERROR, "in the order b, a"),
        (FORWARD, {"joints": ["a"]}, {}, ERROR, "moves a but the contract gives it a, b"),
        (FORWARD, {"type": WELL[JTC]["type"]}, {}, ERROR, "takes trajectories instead of bare positions"),
        (FORWARD, {"type": "effort_controllers/Y"}, {}, ERROR, "effort_controllers/Y"),
        (SERVO, {"moveit_servo.command_in_type": "unitless"}, {}, ERROR, "command_in_type is unitless"),
        (SERVO, {"moveit_servo.incoming_command_timeout": 0.02}, {}, WARNING, "0.02 s, less than two"),
        (SERVO, {"moveit_servo.incoming_command_timeout": 0.0}, {}, WARNING, "timeout is 0 s"),
    ],
)
def test_controller_is_an_error_when_it_moves_wrongly_and_a_warning_when_it_moves_worse(
    controller, values, sender, level, fact
):
    (finding,) = judge(controller, {**WELL[controller], **values}, Sender(**sender))
    assert finding.level == level and fact in finding.fact and finding.about == controller.topic


def test_controller_may_have_more_joints_when_it_takes_partial_goals():
    assert judge(JTC, {"joints": ["a", "b", "c"], "allow_partial_joints_goal": True}) == []
    assert judge(JTC, {"joints": ["a"], "allow_partial_joints_goal": True})[0].level == ERROR


def test_controller_may_interpolate_from_anywhere_when_trajectories_are_stamped():
    assert judge(JTC, {"interpolate_from_desired_state": False}, Sender(stamp="now")) == []


def test_controller_parameters_that_are_asked_for_and_of_which_node():
    assert node_of(JTC) == "arm_controller" and node_of(Controller("joint_trajectory", ("a",))) == ""
    assert {"joints", "interpolation_method", "constraints.b.trajectory"} <= set(asked(JTC))
    assert asked(FORWARD) == ("joints", "interface_name")
    assert "moveit_servo.command_in_type" in asked(SERVO)
