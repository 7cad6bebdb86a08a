"""The image view reads what ROS writes, in place; of what is damaged nothing comes but a ValueError."""

from __future__ import annotations

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image
from streams import serialize_image

from vla_accel_ros.sensing.cameras.image import ImageView, image_message, image_view


def make_message(frame_id: str, encoding: str, height: int, width: int, padding: int = 0) -> Image:
    message = Image(height=height, width=width, encoding=encoding, step=3 * width + padding)
    message.header.stamp.sec, message.header.stamp.nanosec = 1_764_000_000, 123_456_789
    message.header.frame_id = frame_id
    message.data = np.arange(height * message.step, dtype=np.uint8).tobytes()
    return message


def assert_same(view: ImageView, message: Image) -> None:
    stamp = message.header.stamp
    assert view.stamp_ns == stamp.sec * 1_000_000_000 + stamp.nanosec
    assert (view.frame_id, view.encoding) == (message.header.frame_id, message.encoding)
    assert (view.height, view.width, view.step) == (message.height, message.width, message.step)
    assert view.is_bigendian == bool(message.is_bigendian)
    assert view.data.tobytes() == bytes(message.data)


@pytest.mark.parametrize("frame_id", ["", "a", "ab", "abc", "abcd", "camera_front_optical_frame", "kämera"])
@pytest.mark.parametrize("encoding", ["rgb8", "mono8", "bayer_rggb8", "yuv422"])
def test_reads_what_ros_serializes(frame_id, encoding):
    message = make_message(frame_id, encoding, height=5, width=7, padding=3)
    assert_same(image_view(serialize_message(message)), message)


def test_our_writer_writes_what_ros_does():
    message = make_message("front", "bgr8", 2, 3)
    ours = serialize_image(stamp=(1_764_000_000, 123_456_789), encoding=b"bgr8", data=bytes(message.data))
    assert len(serialize_message(message)) - len(ours) in range(4), "ROS may pad the end to four bytes"
    assert_same(image_view(ours), message)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("frame_id", [b"", b"x", b"xy", b"xyz", b"xyzw"])
def test_both_endiannesses_and_every_alignment(order, frame_id):
    message = serialize_image(
        frame_id=frame_id, order=order, stamp=(-1, 5), is_bigendian=1, encoding=b"mono8"
    )
    view = image_view(message)
    assert view.stamp_ns == -999_999_995 and view.is_bigendian
    assert (view.frame_id.encode(), view.height, view.width, view.step) == (frame_id, 2, 3, 9)
    assert view.data.tobytes() == bytes(range(18))


def test_pixels_are_a_view_and_not_a_copy():
    buffer = bytearray(serialize_image())
    view = image_view(memoryview(buffer))
    buffer[-1] = 99
    assert view.data[-1] == 99 and view.data.base is not None
    assert not image_view(bytes(buffer)).data.flags.writeable


def test_an_image_without_pixels_is_read():
    assert len(image_view(serialize_image(size=(0, 0), step=0, data=b"")).data) == 0


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (b"", "begins with b'', not with a plain CDR header: subscribe raw to sensor_msgs/Image"),
        (b"\x00\x01", "not with a plain CDR header"),
        (b"\x00\x03\x00\x00" + bytes(60), r"begins with b'\\x00\\x03\\x00\\x00'"),
        (serialize_image()[:30], "image message ends in .*: it has 30 bytes, this needs "),
        (serialize_image()[:-1], "image message ends in data: "),
        (serialize_image(stamp=(1, 1_000_000_000)), "nanosec is 1000000000, a second or more"),
        (serialize_image().replace(b"rgb8\0", b"rgb8x"), "image encoding has no end: the message is damaged"),
    ],
)
def test_damage_is_named(damaged, sentence):
    with pytest.raises(ValueError, match=sentence):
        image_view(damaged)


@pytest.mark.parametrize("length", range(len(serialize_image())))
def test_every_cut_is_refused(length):
    with pytest.raises(ValueError, match="image"):
        image_view(serialize_image()[:length])


@pytest.mark.parametrize("frame_id", ["", "a", "ab", "abc", "front_camera_optical_frame"])
def test_an_image_message_is_what_rclpy_reads(frame_id):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    message = Image(height=5, width=7, encoding="rgb8", step=21, data=pixels.tobytes())
    message.header.frame_id = frame_id
    message.header.stamp.sec, message.header.stamp.nanosec = 12, 345_678_901
    raw = bytes(image_message(12_345_678_901, frame_id, pixels))
    assert len(raw) == len(serialize_message(message))
    assert deserialize_message(raw, Image) == message
