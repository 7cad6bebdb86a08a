"""What a robot offers, from its topics and messages."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.survey import Survey

S = 1_000_000_000
IMAGE, JPEG, HANDLE = (
    "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
    "vla_accel_msgs/msg/FrameHandle",
)
JOINTS, INFO = "sensor_msgs/msg/JointState", "sensor_msgs/msg/CameraInfo"


def surveyed(namespace: str = "", **types: str) -> Survey:
    """types: by topic, whose slashes are double underscores."""
    survey = Survey("the test", namespace)
    survey.note({f"/{topic.replace('__', '/')}": [kind] for topic, kind in types.items()})
    return survey


def frame(stamp_ns: int, colour: tuple[int, int, int] = (200, 60, 30)) -> bytes:
    picture = np.broadcast_to(np.array(colour, np.uint8), (4, 6, 3))
    return bytes(image_message(stamp_ns, "front", np.ascontiguousarray(picture)))


def test_survey_rate_is_that_of_the_stamps_though_half_of_the_messages_are_lost_or_late() -> None:
    survey = surveyed(front__image_raw=IMAGE)
    for number in range(40):
        if number % 10 != 3:
            survey.image("/front/image_raw", frame(S + number * S // 20), 5 * S + number // 4 * S)
    (camera,) = survey.cameras.values()
    assert camera.rate_hz == pytest.approx(20.0)
    assert (camera.height, camera.width, camera.encoding) == (4, 6, "rgb8")
    assert camera.picture is not None and camera.picture[0, 0].tolist() == [200, 60, 30]


def test_survey_camera_without_stamps_gets_the_rate_of_its_arrivals() -> None:
    survey = surveyed(front__image_raw=IMAGE)
    for number in range(5):
        survey.image("/front/image_raw", frame(0), number * S // 10)
    assert survey.cameras["front"].rate_hz == pytest.approx(10.0)


def test_survey_picture_has_the_colours_that_its_encoding_says() -> None:
    survey = surveyed(a__image_raw=IMAGE, b__image_raw__compressed=JPEG)
    blue_first = np.broadcast_to(np.array([30, 60, 200], np.uint8), (8, 8, 3))
    message = Image(height=8, width=8, encoding="bgr8", step=24, data=blue_first.tobytes())
    survey.image("/a/image_raw", serialize_message(message), S)
    packed = cv2.imencode(".png", blue_first)[1].tobytes()
    survey.image("/b/image_raw/compressed", serialize_message(CompressedImage(format="png", data=packed)), S)
    for camera in survey.cameras.values():
        assert camera.picture is not None and camera.picture[0, 0].tolist() == [200, 60, 30]


def test_survey_depth_and_silent_cameras_are_not_offered_and_say_why() -> None:
    survey = surveyed(depth__image_rect_raw=IMAGE, dead__image_raw=IMAGE, front__image_raw=IMAGE)
    depth = Image(height=2, width=2, encoding="16UC1", step=4, data=bytes(8))
    survey.image("/depth/image_rect_raw", serialize_message(depth), S)
    survey.image("/front/image_raw", frame(S), S)
    assert list(survey.cameras) == ["front"]
    problems = {stream.topic: stream.problem for stream in survey.unusable}
    assert problems.keys() == {"/depth/image_rect_raw", "/dead/image_raw"}
    assert "16UC1" in problems["/depth/image_rect_raw"]


def test_survey_camera_that_comes_in_several_ways_counts_once_by_the_one_that_costs_least() -> None:
    survey = surveyed(
        cam__top__frame=HANDLE,
        cam__top__image_raw=IMAGE,
        cam__top__image_raw__compressed=JPEG,
        side__image_raw=IMAGE,
    )
    survey.handle("/cam/top/frame", (4, 6), "rgb8", S, S)
    for topic in ("/cam/top/image_raw", "/side/image_raw"):
        survey.image(topic, frame(S), S)
    offered = {name: (camera.topic, camera.transport) for name, camera in survey.cameras.items()}
    assert offered == {"cam_top": ("/cam/top/frame", "ring"), "side": ("/side/image_raw", "raw")}


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("cameras__base__color__image_raw", "base"),
        ("cam_high__camera__color__image_rect_raw", "cam_high"),
        ("camera__camera__color__image_raw", "camera"),
        ("static_camera__image_raw", "static_camera"),
    ],
)
def test_survey_name_of_a_camera_is_the_part_of_its_topic_that_drivers_do_not_share(
    topic: str, name: str
) -> None:
    survey = surveyed(**{topic: IMAGE})
    (path,) = survey.streams
    survey.image(path, frame(S), S)
    assert list(survey.cameras) == [name]


def test_survey_of_a_namespace_takes_its_own_and_names_them_relative() -> None:
    survey = surveyed(
        "/left",
        left__joint_states=JOINTS,
        right__joint_states=JOINTS,
        ceiling__image_raw=IMAGE,
        ceiling__camera_info=INFO,
    )
    for topic in ("/left/joint_states", "/right/joint_states"):
        survey.joints(topic, ["a"], [0.1], S, S)
    survey.image("/ceiling/image_raw", frame(S), S)
    (states,) = survey.joint_states
    assert survey.relative(states.topic) == "joint_states"
    (camera,) = survey.cameras.values()
    assert survey.relative(camera.topic) == "/ceiling/image_raw"
    assert survey.info_of(camera) == "/ceiling/camera_info"


def test_survey_joint_states_of_all_joints_come_before_those_of_a_part() -> None:
    survey = surveyed(gripper__joint_states=JOINTS, joint_states=JOINTS)
    survey.joints("/gripper/joint_states", ["finger"], [0.0], S, S)
    survey.joints("/joint_states", ["a", "finger"], [0.1, 0.0], S, S)
    assert [stream.topic for stream in survey.joint_states] == ["/joint_states", "/gripper/joint_states"]


def test_survey_camera_in_the_namespace_is_named_without_it() -> None:
    survey = surveyed("/left", left__camera__wrist__image_raw=IMAGE, right__camera__wrist__image_raw=IMAGE)
    for topic in survey.streams:
        survey.image(topic, frame(S), S)
    assert {name: survey.relative(camera.topic) for name, camera in survey.cameras.items()} == {
        "wrist": "camera/wrist/image_raw"
    }
