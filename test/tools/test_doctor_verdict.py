"""Could this robot move now: every state has its reason and its fix, and causes hide consequences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vla_accel_ros.sensing.arrivals import Inputs
from vla_accel_ros.tools.doctor.verdict import Node, Robot, Running, why_not

WELL = Robot(
    Node("/inference", "active"),
    Node("/trajectory", "active"),
    ("running", ()),
    Inputs(1, {"camera/front": 1}),
)


def said(**changes) -> list[str]:
    return [
        f"{finding.about}: {finding.fact} -> {finding.fix}" for finding in why_not(replace(WELL, **changes))
    ]


def test_verdict_is_empty_when_a_robot_runs():
    assert said() == []


@pytest.mark.parametrize(
    ("state", "trouble", "processes", "facts"),
    [
        (None, "", [], ["does not run", "bringup.launch.py"]),
        (
            "unconfigured",
            "no model",
            [],
            ["unconfigured: no model", "set /inference configure &&", "activate"],
        ),
        ("inactive", "", [], ["is inactive", "-> ros2 lifecycle set /inference activate"]),
        ("finalized", "", [], ["is finalized", "start it again"]),
        ("", "", [Running(7)], ["hangs: process 7 does not answer"]),
        (None, "", [Running(7)], ["hangs: process 7 is not in the graph"]),
        ("", "", [Running(7, stopped=True)], ["hangs: process 7", "stopped", "kill -CONT 7"]),
        ("", "", [Running(7, load=0.9)], ["process 7 works (0.9 of a core)", "wait"]),
        ("", "", [Running(7, load=0.9, starting=True)], ["is starting: process 7 does not answer yet"]),
        (None, "", [Running(7, starting=True)], ["is starting: process 7 is not in the graph"]),
        ("", "", [], ["hangs, or has died", "does not answer"]),
    ],
)
def test_verdict_names_a_node_that_is_not_active_and_what_to_type(state, trouble, processes, facts):
    node, motion = Node("/inference", state, trouble, processes), ("holding", ["inference has said nothing"])
    (only,) = said(inference=node, inputs=None, motion=motion)
    assert only.startswith("/inference: ") and [fact for fact in facts if fact not in only] == []
    assert "kill -9" not in only or " kill 7" in only.partition("kill -9")[0]


@pytest.mark.parametrize(
    ("state", "reason", "fix"),
    [
        ("holding", "held by the operator", "~/resume: ros2 service call /trajectory/resume std_srvs"),
        ("holding", "restarted after a crash; ~/resume goes on", "~/resume: ros2 service call"),
        ("holding", "elbow jumped by 0.40 rad", "~/resume: ros2 service call"),
        ("released", "released to others; ~/reclaim takes the controllers back", "~/reclaim: ros2 service"),
        ("human", "a person commands the arm; ~/give_back returns it", "~/give_back: ros2 service"),
        ("stopping", "camera/front is 0.60 s old, the limit is 0.50 s", "it goes on by itself"),
        ("holding", "the model makes 2.4 chunks/s; this contract needs 3.1", "raise chunk.max_age_s"),
    ],
)
def test_verdict_has_the_reason_and_the_fix_when_a_robot_is_held(state, reason, fix):
    (only,) = said(motion=(state, [reason]))
    assert only.startswith(f"/trajectory: {reason} -> {fix}")


def test_verdict_has_the_fix_of_a_late_input_that_inference_knows():
    assert WELL.inputs is not None
    inputs = replace(WELL.inputs, problems={"camera/front": "camera front: encoding is '16UC1'"})
    (only,) = said(inputs=inputs, motion=("holding", ["camera/front has not come yet"]))
    assert only.endswith("-> camera front: encoding is '16UC1'")


def test_verdict_leaves_out_what_follows_from_a_cause_and_nothing_else():
    assert WELL.inputs is not None
    waiting = replace(WELL.inputs, waiting_for="no instruction yet: publish one on the instruction topic")
    reasons = ["chunk has not come yet", "held by the operator"]
    first, second = said(inputs=waiting, motion=("holding", reasons))
    assert first.startswith("/inference: ") and "vla say" in first
    assert second.startswith("/trajectory: held by the operator")
    waiting = replace(waiting, waiting_for="no state of joint elbow yet")
    (only,) = said(inputs=waiting, motion=("holding", ["chunk has not come yet"]))
    assert only.startswith("/inference: ") and "no state of joint elbow yet" in only


def test_verdict_names_nodes_that_are_active_and_publish_nothing():
    assert "/inference: " in said(inputs=None)[0] and "topic inputs" in said(inputs=None)[0]
    assert "/trajectory: " in said(motion=None)[0] and "no motion" in said(motion=None)[0]
    assert said(motion=("holding", []))[0].startswith("/trajectory: is holding without a reason")


def test_verdict_names_commands_that_nobody_hears_or_others_send_too():
    first, second = said(unheard=["arm/joint_trajectory"], rivals={"action_chunk": ["/player"]})
    assert first.startswith("arm/joint_trajectory: ") and "its controller" in first
    assert second.startswith("action_chunk: ") and "/player" in second


def test_verdict_names_commands_that_nobody_executes_once_with_their_fix():
    reason = "controllers[0].topic: nobody listens to /arm/joint_trajectory; start its controller"
    (only,) = said(unheard=["arm/joint_trajectory"], motion=("holding", [reason]))
    assert "/arm/joint_trajectory" in only and only.endswith("-> start its controller")
    assert "resume" not in only
