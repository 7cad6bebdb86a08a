"""Which parameters of a controller are refused, warned about, or none of our business."""

from __future__ import annotations

from typing import Any

import pytest

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.contract.controller_check import Sender, asked, judge, node_of
from vla_accel_ros.contract.findings import ERROR, WARNING

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
def test_a_controller_that_does_what_it_is_sent_is_not_found_fault_with(controller):
    assert judge(controller, WELL[controller]) == []
    assert judge(controller, {}) == []


@pytest.mark.parametrize(
    ("controller", "values", "sender", "level", "sentence"),
    [
        (JTC, {"joints": ["a", "x"]}, {}, ERROR, "moves a, x but the contract gives it a, b; mend"),
        (JTC, {"joints": ["a", "b", "c"]}, {}, ERROR, "moves a, b, c but"),
        (JTC, {"interpolation_method": "none"}, {}, ERROR, "jumps from point to point; set it to splines"),
        (JTC, {"type": "velocity_controllers/X"}, {}, ERROR, "takes velocities instead of trajectories"),
        (JTC, {}, {"stamp": "zero"}, ERROR, "each of them jerks; set our parameter stamp to now"),
        (
            JTC,
            {"command_interfaces": ["effort"]},
            {},
            WARNING,
            "are effort, without position; tune its gains",
        ),
        (
            JTC,
            {"constraints.a.trajectory": 0.01},
            {"speeds": {"a": 3.0, "b": 3.0}},
            WARNING,
            "constraints.a.trajectory is 0.01, which a joint that lags 50 ms leaves at its full speed of 3",
        ),
        (
            FORWARD,
            {"interface_name": "velocity"},
            {},
            ERROR,
            "interface_name is velocity, but we send positions",
        ),
        (
            FORWARD,
            {"joints": ["b", "a"]},
            {},
            ERROR,
            "in the order b, a; write controllers[].joints in that order",
        ),
        (FORWARD, {"joints": ["a"]}, {}, ERROR, "moves a but the contract gives it a, b"),
        (FORWARD, {"type": WELL[JTC]["type"]}, {}, ERROR, "takes trajectories instead of bare positions"),
        (FORWARD, {"type": "effort_controllers/Y"}, {}, ERROR, "which does not take positions"),
        (SERVO, {"moveit_servo.command_in_type": "unitless"}, {}, ERROR, "unitless, but we send rad/s"),
        (
            SERVO,
            {"moveit_servo.incoming_command_timeout": 0.02},
            {},
            WARNING,
            "less than two periods of our 50 Hz",
        ),
        (JTC, {"allow_trajectory_replacement": True}, {}, ERROR, "the joints step by what"),
        (SERVO, {"moveit_servo.incoming_command_timeout": 0.0}, {}, WARNING, "moves on without commands"),
    ],
)
def test_what_would_move_the_robot_wrongly_is_an_error_and_what_makes_it_worse_a_warning(
    controller, values, sender, level, sentence
):
    (found,) = judge(controller, {**WELL[controller], **values}, Sender(**sender))
    assert found.level == level and sentence in str(found) and str(found).startswith(controller.topic)


def test_more_joints_are_well_for_a_controller_that_takes_some_of_them():
    assert judge(JTC, {"joints": ["a", "b", "c"], "allow_partial_joints_goal": True}) == []
    assert judge(JTC, {"joints": ["a"], "allow_partial_joints_goal": True})[0].level == ERROR


def test_trajectories_that_are_stamped_are_joined_in_the_middle_whatever_the_controller_interpolates_from():
    assert judge(JTC, {"interpolate_from_desired_state": False}, Sender(stamp="now")) == []


def test_what_is_asked_for_and_of_whom():
    assert node_of(JTC) == "arm_controller" and node_of(Controller("joint_trajectory", ("a",))) == ""
    assert {"joints", "interpolation_method", "constraints.b.trajectory"} <= set(asked(JTC))
    assert asked(FORWARD) == ("joints", "interface_name")
    assert "moveit_servo.command_in_type" in asked(SERVO)
