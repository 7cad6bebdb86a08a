"""A graph that does not fit the contract is described in one sentence for each fault, with its fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING, Finding, refuse
from vla_accel_ros.contract.checks.graph_check import Endpoint, Qos, Wanted, inputs, judge, misplaced, outputs

IMAGE, PACKED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA = Wanted("cameras.front.topic", "camera", IMAGE)
COMMAND = Wanted(
    "controllers[0].topic", "arm/commands", "std_msgs/msg/Float64MultiArray", ours=True, qos=Qos()
)


def camera(type: str = IMAGE, node: str = "/driver", **qos) -> Endpoint:
    return Endpoint(node, type, Qos(**qos))


def findings(wanted: Wanted, *ends: Endpoint, topics=None) -> list[tuple[str, str]]:
    return [
        (finding.level, str(finding)) for finding in judge(wanted, f"/{wanted.topic}", ends, topics or {})
    ]


def assert_finding(level: str, wanted: Wanted, *ends: Endpoint, facts: tuple[str, ...], topics=None) -> None:
    ((reported, text),) = findings(wanted, *ends, topics=topics)
    assert reported == level and text.startswith(f"{wanted.about}: ")
    assert [fact for fact in facts if fact not in text] == []


def test_topics_that_the_simulated_arm_needs(contract):
    trajectory = "trajectory_msgs/msg/JointTrajectory"
    assert [(w.about, w.topic, w.type, w.ours) for w in (*inputs(contract), *outputs(contract))] == [
        ("cameras.front.topic", "camera/front/image_raw", IMAGE, False),
        ("cameras.wrist.topic", "camera/wrist/image_raw", IMAGE, False),
        ("joint_states.topic", "joint_states", "sensor_msgs/msg/JointState", False),
        ("controllers[0].topic", "arm_controller/joint_trajectory", trajectory, True),
        ("controllers[1].topic", "gripper_controller/joint_trajectory", trajectory, True),
    ]


def test_topics_that_are_all_outside_of_the_namespace_are_one_cause(contract):
    topics = [*inputs(contract), *outputs(contract)]
    root = {f"/{topic.topic}": [topic.type] for topic in topics}
    (finding,) = misplaced([(topic, f"/arm/{topic.topic}", False) for topic in topics], root)
    assert finding.level == WARNING and "without namespace" in finding.fix
    assert [name for name in root if name not in finding.fact] == []
    joints = "/joint_states"
    in_place = [(topic, f"/arm/{topic.topic}", topic.topic == "joint_states") for topic in topics]
    at_home = [(topic, f"/{topic.topic}", False) for topic in topics]
    for ends, graph in ((in_place, root), (at_home, root), (in_place, {joints: root[joints]})):
        assert not misplaced(ends, graph)
    (absent,) = judge(topics[2], f"/arm{joints}", (), {joints: root[joints]})
    assert "joint_states.topic: /joint_states" in absent.fix


@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
def test_publisher_or_listener_that_fits_is_ok(reliability):
    assert_finding(OK, CAMERA, camera(reliability=reliability), facts=("/camera", "/driver"))
    listener = Endpoint("/cm", COMMAND.type, Qos(reliability))
    assert_finding(OK, COMMAND, listener, facts=("/arm/commands", "/cm"))


def test_topic_without_other_end_is_a_warning_with_the_topics_it_could_be():
    topics = {"/front/image": [IMAGE], "/front/compressed": [PACKED], "/camera": [IMAGE]}
    assert_finding(WARNING, CAMERA, topics=topics, facts=("/camera", "(topics of its type: /front/image)"))
    assert_finding(WARNING, COMMAND, facts=("/arm/commands", "its controller", "controllers[0].topic"))


def test_other_type_is_an_error_that_knows_how_to_take_it():
    facts = ("/driver", PACKED, IMAGE, "transport: compressed in cameras.front")
    assert_finding(ERROR, CAMERA, camera(PACKED), facts=facts)
    assert_finding(ERROR, CAMERA, camera("std_msgs/msg/String"), facts=("; fix cameras.front.topic",))
    listener = Endpoint("/jtc", "trajectory_msgs/msg/JointTrajectory", Qos())
    facts = ("/jtc", listener.type, COMMAND.type, "kind: joint_trajectory in controllers[0]")
    assert_finding(ERROR, COMMAND, listener, facts=facts)


def test_other_type_beside_the_right_one_is_a_warning():
    assert [level for level, _ in findings(CAMERA, camera(), camera(PACKED, "/other"))] == [WARNING]


def test_qos_that_lets_nothing_through_is_an_error():
    reliable, latched, strict = (
        replace(CAMERA, qos=qos)
        for qos in (Qos("reliable"), Qos("reliable", "transient_local"), Qos(deadline_s=0.1))
    )
    override = "qos_overrides./camera.subscription.reliability to best_effort"
    assert_finding(ERROR, reliable, camera(reliability="best_effort"), facts=("/driver", override))
    assert_finding(ERROR, latched, camera(), facts=("offer durability transient_local",))
    assert_finding(OK, latched, camera(durability="transient_local"), facts=())
    assert_finding(ERROR, strict, camera(), facts=("deadline inf s", "0.1 s"))
    assert_finding(OK, strict, camera(deadline_s=0.05), facts=())
    listener = Endpoint("/cm", COMMAND.type, Qos("reliable", "transient_local"))
    assert_finding(ERROR, COMMAND, listener, facts=("/cm requests transient_local", "durability volatile"))


def test_qos_that_is_not_known_is_not_judged():
    assert_finding(OK, CAMERA, camera(reliability="unknown", durability="unknown"), facts=())


def test_publisher_of_two_that_does_not_fit_is_a_warning_and_two_that_fit_mix():
    reliable = replace(CAMERA, qos=Qos("reliable"))
    reports = findings(reliable, camera(), camera(node="/other", reliability="best_effort"))
    assert [level for level, _ in reports] == [WARNING, WARNING]
    assert "2 publishers (/driver, /other)" in reports[1][1]


def test_joint_states_may_come_from_several_drivers(contract):
    joints = inputs(contract)[-1]
    assert [level for level, _ in findings(joints, camera(joints.type), camera(joints.type, "/hand"))] == [OK]


def test_refuse_raises_all_errors_at_once_and_no_warning():
    mild = [Finding(OK, "a", "fine"), Finding(WARNING, "b", "so so", "look")]
    refuse(mild)
    with pytest.raises(ValueError, match=r"^c: bad; fix \| d: worse; fix$"):
        refuse([*mild, Finding(ERROR, "c", "bad", "fix"), Finding(ERROR, "d", "worse", "fix")])
