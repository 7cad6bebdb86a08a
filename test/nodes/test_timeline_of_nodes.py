"""A node's callbacks and publishes on the timeline, and the pages that its service tells."""

from __future__ import annotations

from typing import Any

import pytest
from builtin_interfaces.msg import Time
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk
from vla_accel_msgs.srv import GetTimeline
from vla_accel_ros.nodes.timeline import NodeTimeline, events_from_response, page_to_response
from vla_accel_ros.timeline import TIMELINE, Event, Page

STAMP_NS = 1_795_371_185_000_000_123


class Node:
    """A node without a graph."""

    def create_service(self, *_: object) -> None:
        """None."""

    def resolve_topic_name(self, topic: str) -> str:
        return f"/arm/{topic}"


class Publisher:
    """Publishes nothing. sent: what it was given."""

    def __init__(self, topic: str, active: bool = True) -> None:
        self.topic_name, self.is_activated = topic, active
        self.sent: list[Any] = []

    def publish(self, message: object) -> None:
        self.sent.append(message)


@pytest.fixture
def timeline() -> NodeTimeline:
    TIMELINE.clear()
    return NodeTimeline(Node())


def stamped(message: Any) -> Any:
    message.header.stamp = Time(sec=STAMP_NS // 10**9, nanosec=STAMP_NS % 10**9)
    return message


def told() -> list[tuple[str, str, tuple[int, ...]]]:
    return [(event.track, event.name, event.flows) for event in TIMELINE.events()]


def test_what_is_heard_of_a_frame_has_its_flow_also_where_it_is_not_decoded(timeline: NodeTimeline) -> None:
    heard: list[object] = []
    timeline.heard(heard.append, ActionChunk, "action_chunk")(stamped(ActionChunk()))
    raw = serialize_message(stamped(Image()))
    timeline.heard(heard.append, Image, "image")(raw)
    timeline.heard(heard.append, Image, "image")(b"short")
    timeline.heard(heard.append, JointState, "joint_states")(stamped(JointState()))
    assert len(heard) == 4 and heard[1] is raw
    assert told() == [
        ("topic /arm/action_chunk", "callback", (STAMP_NS,)),
        ("topic /arm/image", "callback", (STAMP_NS,)),
        ("topic /arm/image", "callback", ()),
        ("topic /arm/joint_states", "callback", ()),
    ]


def test_a_callback_that_raises_is_there_and_raises(timeline: NodeTimeline) -> None:
    def fail(message: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        timeline.heard(fail, JointState, "joint_states")(JointState())
    with pytest.raises(ValueError, match="no"):
        timeline.called(fail, "timer")(None)
    tracks = [track for track, _, _ in told()]
    assert tracks[0] == "topic /arm/joint_states"
    assert tracks[1].startswith("timer ") and tracks[1].endswith("fail")


def test_a_command_belongs_to_the_chunk_that_is_followed(timeline: NodeTimeline) -> None:
    arm = Publisher("/arm/joint_trajectory")
    timeline.published(arm, JointTrajectory)
    arm.publish(JointTrajectory())  # a stop
    with timeline.following(STAMP_NS):
        arm.publish(JointTrajectory())
    arm.publish(JointTrajectory())
    assert len(arm.sent) == 3
    assert told() == [
        ("topic /arm/joint_trajectory", "publish", ()),
        ("topic /arm/joint_trajectory", "publish", (STAMP_NS,)),
        ("trajectory", "follow", (STAMP_NS,)),
        ("topic /arm/joint_trajectory", "publish", ()),
    ]


def test_a_chunk_belongs_to_its_own_frame_and_who_is_not_active_publishes_nothing(
    timeline: NodeTimeline,
) -> None:
    chunks, silent = Publisher("/arm/action_chunk"), Publisher("/arm/action_chunk", active=False)
    for publisher in (chunks, silent):
        timeline.published(publisher, ActionChunk)
        publisher.publish(stamped(ActionChunk()))
    assert told() == [("topic /arm/action_chunk", "publish", (STAMP_NS,))]


EVENTS = (
    Event("lane main", "act.denoise", 10, 20, (5, -7), "act 3 of frame 7"),
    Event("loop vision", "run", 15, 25),
    Event("lane main", "act.denoise", 30, 30, (5,)),
)


def test_events_survive_the_way_through_a_response_and_each_text_goes_once() -> None:
    response = page_to_response(Page(EVENTS, 3, 17, True), GetTimeline.Response())
    assert (response.oldest_ns, response.next, response.more) == (3, 17, True)
    assert sorted(response.texts) == [
        "",
        "act 3 of frame 7",
        "act.denoise",
        "lane main",
        "loop vision",
        "run",
    ]
    assert tuple(events_from_response(response)) == EVENTS
    empty = page_to_response(Page((), 0, 0, False), GetTimeline.Response())
    assert events_from_response(empty) == []


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("names", [0, 0]),
        ("end_ns", []),
        ("tracks", [0, 1, 99]),
        ("flow_events", [0, 0, 3]),
        ("flow_ids", [5]),
    ],
)
def test_a_response_whose_lists_do_not_fit_is_refused(field: str, wrong: list[int]) -> None:
    response = page_to_response(Page(EVENTS, 3, 17, True), GetTimeline.Response(process="boot 1 x"))
    setattr(response, field, wrong)
    with pytest.raises(ValueError, match=r"boot 1 x .*lists"):
        events_from_response(response)
