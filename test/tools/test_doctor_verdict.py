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


def test_a_robot_that_runs_could_move():
    assert said() == []


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (Node("/inference", None), "does not run -> ros2 launch vla_accel_ros bringup.launch.py"),
        (
            Node("/inference", "unconfigured", "cannot configure: no model"),
            "is unconfigured: cannot configure: no model -> ros2 lifecycle set /inference configure && "
            "ros2 lifecycle set /inference activate",
        ),
        (Node("/inference", "inactive"), "is inactive -> ros2 lifecycle set /inference activate"),
        (Node("/inference", "finalized"), "is finalized -> start it again"),
        (Node("/inference", "", "", [Running(7)]), "hangs: process 7 does not answer and does nothing -> "),
        (Node("/inference", None, "", [Running(7)]), "hangs: process 7 is not in the graph and does nothing"),
        (
            Node("/inference", "", "", [Running(7, stopped=True)]),
            "hangs: process 7 was stopped by a signal -> kill -CONT 7 lets it go on",
        ),
        (
            Node("/inference", "", "", [Running(7, load=0.9)]),
            "does not answer, but process 7 works (0.9 of a core) -> wait while it starts or loads its model",
        ),
        (
            Node("/inference", "", "", [Running(7, load=0.9, starting=True)]),
            "is starting: process 7 does not answer yet",
        ),
        (
            Node("/inference", None, "", [Running(7, starting=True)]),
            "is starting: process 7 is not in the graph",
        ),
        (Node("/inference", ""), "hangs, or has died just now: it is in the graph and does not answer"),
    ],
)
def test_a_node_that_is_not_active(node, sentence):
    (only,) = said(inference=node, inputs=None, motion=("holding", ["inference has said nothing for 3 s"]))
    assert only.startswith(f"/inference: {sentence}")
    assert "kill -9" not in only or " kill 7" in only.partition("kill -9")[0]


@pytest.mark.parametrize(
    ("state", "reason", "fix"),
    [
        (
            "holding",
            "held by the operator",
            "~/resume: ros2 service call /trajectory/resume std_srvs",
        ),
        ("holding", "restarted after a crash; ~/resume goes on", "~/resume: ros2 service call"),
        ("holding", "elbow jumped by 0.40 rad", "~/resume: ros2 service call"),
        ("released", "released to others; ~/reclaim takes the controllers back", "~/reclaim: ros2 service"),
        ("stopping", "camera/front is 0.60 s old, the limit is 0.50 s", "it goes on by itself once this"),
        (
            "holding",
            "the model makes 2.4 chunks/s; this contract needs 3.1",
            "raise chunk.max_age_s, or",
        ),
    ],
)
def test_a_robot_that_is_held(state, reason, fix):
    (only,) = said(motion=(state, [reason]))
    assert only.startswith(f"/trajectory: {reason} -> {fix}")


def test_a_late_input_is_mended_where_inference_knows_what_is_wrong():
    assert WELL.inputs is not None
    inputs = replace(WELL.inputs, problems={"camera/front": "camera front: encoding is '16UC1'"})
    (only,) = said(inputs=inputs, motion=("holding", ["camera/front has not come yet"]))
    assert only.endswith("-> camera front: encoding is '16UC1'")


def test_what_follows_from_a_cause_is_left_out_and_what_does_not_is_told():
    assert WELL.inputs is not None
    waiting = replace(WELL.inputs, waiting_for="no instruction yet: publish one on the instruction topic")
    reasons = ["chunk has not come yet", "held by the operator"]
    first, second = said(inputs=waiting, motion=("holding", reasons))
    assert first == '/inference: has no instruction yet -> vla say "..."'
    assert second.startswith("/trajectory: held by the operator")
    waiting = replace(waiting, waiting_for="no state of joint elbow yet")
    (only,) = said(inputs=waiting, motion=("holding", ["chunk has not come yet"]))
    assert only.startswith("/inference: makes no chunks: no state of joint elbow yet -> ")


def test_nodes_that_are_active_and_tell_nothing():
    assert said(inputs=None)[0].startswith("/inference: is active but publishes nothing on the topic inputs")
    assert said(motion=None)[0].startswith("/trajectory: is active but publishes no motion")
    assert said(motion=("holding", []))[0].startswith("/trajectory: is holding without a reason")


def test_commands_that_nobody_hears_or_others_send_too():
    first, second = said(unheard=["arm/joint_trajectory"], others={"action_chunk": ["/player"]})
    assert first.startswith("arm/joint_trajectory: nobody listens to it -> start its controller")
    assert second == "action_chunk: is also published by /player -> stop all but ours"


def test_commands_that_nobody_executes_are_told_once_with_what_mends_them():
    said_so = "controllers[0].topic: nobody listens to /arm/joint_trajectory; start its controller"
    (only,) = said(unheard=["arm/joint_trajectory"], motion=("holding", [said_so]))
    assert "/arm/joint_trajectory" in only and only.endswith("-> start its controller")
    assert "resume" not in only
