"""A graph that does not fit the contract is described in one sentence for each fault, with its mend."""

from __future__ import annotations

import pytest

from vla_accel_ros.contract.findings import ERROR, OK, WARNING, Finding, refuse
from vla_accel_ros.contract.graph_check import Endpoint, Qos, Wanted, inputs, judge, misplaced, outputs

IMAGE, PACKED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA = Wanted("cameras.front.topic", "camera", IMAGE)
COMMAND = Wanted(
    "controllers[0].topic", "arm/commands", "std_msgs/msg/Float64MultiArray", ours=True, qos=Qos()
)


def camera(type: str = IMAGE, node: str = "/driver", **qos) -> Endpoint:
    return Endpoint(node, type, Qos(**qos))


def told(wanted: Wanted, *there: Endpoint, topics=None) -> list[tuple[str, str]]:
    found = judge(wanted, f"/{wanted.topic}", there, topics or {})
    return [(finding.level, str(finding)) for finding in found]


def test_what_the_simulated_arm_needs(contract):
    assert [(w.about, w.topic, w.type, w.ours) for w in (*inputs(contract), *outputs(contract))] == [
        ("cameras.front.topic", "camera/front/image_raw", IMAGE, False),
        ("cameras.wrist.topic", "camera/wrist/image_raw", IMAGE, False),
        ("joint_states.topic", "joint_states", "sensor_msgs/msg/JointState", False),
        (
            "controllers[0].topic",
            "arm_controller/joint_trajectory",
            "trajectory_msgs/msg/JointTrajectory",
            True,
        ),
        (
            "controllers[1].topic",
            "gripper_controller/joint_trajectory",
            "trajectory_msgs/msg/JointTrajectory",
            True,
        ),
    ]


def test_topics_that_are_all_outside_of_the_namespace_are_one_cause(contract):
    wanted = [*inputs(contract), *outputs(contract)]
    root = {f"/{each.topic}": [each.type] for each in wanted}
    (finding,) = misplaced([(each, f"/arm/{each.topic}", False) for each in wanted], root)
    assert finding.level == WARNING and "without namespace" in finding.mend
    for topic in root:
        assert topic in finding.what
    joints = "/joint_states"
    in_place = [(each, f"/arm/{each.topic}", each.topic == "joint_states") for each in wanted]
    at_home = [(each, f"/{each.topic}", False) for each in wanted]
    for ends, topics in ((in_place, root), (at_home, root), (in_place, {joints: root[joints]})):
        assert not misplaced(ends, topics)
    (absent,) = judge(wanted[2], f"/arm{joints}", (), {joints: root[joints]})
    assert "joint_states.topic: /joint_states" in absent.mend


@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
def test_a_fitting_publisher(reliability):
    assert told(CAMERA, camera(reliability=reliability)) == [
        (OK, "cameras.front.topic: /camera is published by /driver")
    ]
    listener = Endpoint("/cm", COMMAND.type, Qos(reliability))
    assert told(COMMAND, listener) == [(OK, "controllers[0].topic: /arm/commands is heard by /cm")]


def test_nobody_there_is_a_warning_with_the_topics_it_could_be():
    topics = {"/front/image": [IMAGE], "/front/compressed": [PACKED], "/camera": [IMAGE]}
    assert told(CAMERA, topics=topics) == [
        (
            WARNING,
            "cameras.front.topic: nobody publishes /camera; start its driver, or mend cameras.front.topic "
            "(topics of its type: /front/image)",
        )
    ]
    assert told(COMMAND) == [
        (
            WARNING,
            "controllers[0].topic: nobody listens to /arm/commands; start its controller, or mend "
            "controllers[0].topic",
        )
    ]


def test_another_type_is_an_error_that_knows_how_to_take_it():
    assert told(CAMERA, camera(PACKED)) == [
        (
            ERROR,
            "cameras.front.topic: /camera is published by /driver as sensor_msgs/msg/CompressedImage, not "
            "sensor_msgs/msg/Image; write transport: compressed in cameras.front, or another topic",
        )
    ]
    assert told(CAMERA, camera("std_msgs/msg/String"))[0][1].endswith("; mend cameras.front.topic")
    heard = Endpoint("/jtc", "trajectory_msgs/msg/JointTrajectory", Qos())
    assert told(COMMAND, heard) == [
        (
            ERROR,
            "controllers[0].topic: /arm/commands is heard by /jtc as trajectory_msgs/msg/JointTrajectory, "
            "not std_msgs/msg/Float64MultiArray; write kind: joint_trajectory in controllers[0], or another "
            "topic",
        )
    ]


def test_another_type_beside_the_right_one_is_a_warning():
    assert [level for level, _ in told(CAMERA, camera(), camera(PACKED, "/other"))] == [WARNING]


def test_qos_that_lets_nothing_through():
    reliable = Wanted("cameras.front.topic", "camera", IMAGE, qos=Qos("reliable"))
    assert told(reliable, camera(reliability="best_effort")) == [
        (
            ERROR,
            "cameras.front.topic: /camera is offered reliability best_effort by /driver but we request "
            "reliable, so nothing arrives; set our parameter "
            "qos_overrides./camera.subscription.reliability to best_effort",
        )
    ]
    latched = Wanted("cameras.front.topic", "camera", IMAGE, qos=Qos("reliable", "transient_local"))
    assert "have it offer durability transient_local" in told(latched, camera())[0][1]
    assert told(latched, camera(durability="transient_local"))[0][0] == OK
    strict = Wanted("cameras.front.topic", "camera", IMAGE, qos=Qos(deadline_s=0.1))
    assert "is offered deadline inf s by /driver but we request 0.1 s" in told(strict, camera())[0][1]
    assert told(strict, camera(deadline_s=0.05))[0][0] == OK
    listener = Endpoint("/cm", COMMAND.type, Qos("reliable", "transient_local"))
    assert told(COMMAND, listener) == [
        (
            ERROR,
            "controllers[0].topic: /arm/commands is offered durability volatile by us but /cm requests "
            "transient_local, so it receives nothing; have it request durability volatile",
        )
    ]


def test_qos_that_is_not_known_is_not_judged():
    assert told(CAMERA, camera(reliability="unknown", durability="unknown"))[0][0] == OK


def test_one_of_two_publishers_that_does_not_fit_is_a_warning_and_two_that_do_mix():
    reliable = Wanted("cameras.front.topic", "camera", IMAGE, qos=Qos("reliable"))
    found = told(reliable, camera(), camera(node="/other", reliability="best_effort"))
    assert [level for level, _ in found] == [WARNING, WARNING]
    assert "/camera has 2 publishers (/driver, /other), whose messages mix; stop all but one" in found[1][1]


def test_several_drivers_may_share_the_joint_states(contract):
    joints = inputs(contract)[-1]
    assert [level for level, _ in told(joints, camera(joints.type), camera(joints.type, "/hand"))] == [OK]


def test_errors_are_refused_in_one_sentence_and_warnings_are_not():
    found = [
        Finding(OK, "a", "fine"),
        Finding(WARNING, "b", "so so", "look"),
        Finding(ERROR, "c", "bad", "mend"),
    ]
    refuse(found[:2])
    with pytest.raises(ValueError, match=r"^c: bad; mend \| d: worse; mend$"):
        refuse([*found, Finding(ERROR, "d", "worse", "mend")])
