"""Every 8-bit colour encoding, read in place as ROS writes it, becomes RGB in the slot it was given; of what
is damaged nothing comes but a ValueError."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import cv2
import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image
from streams import make_view, pad_rows, serialize_image

from vla_accel_ros.sensing.cameras.image import ENCODINGS, ImageView, image_message, image_view, write_rgb

H, W = 6, 10
RGB = np.random.default_rng(0).integers(0, 256, (H, W, 3), dtype=np.uint8)
ALPHA = np.full((H, W, 1), 7, np.uint8)
GRAY = RGB[..., 0]
YUV = np.random.default_rng(1).integers(0, 256, (H, W, 2), dtype=np.uint8)
PLANES = np.random.default_rng(2).integers(0, 256, (H * 3 // 2, W), dtype=np.uint8)
BAYER = ("rggb", "bggr", "gbrg", "grbg")


def yuv_to_rgb(y, u, v) -> np.ndarray:
    """BT.601 limited range in the fixed point that OpenCV documents for its YUV conversions (20 bits)."""
    y, u, v = (np.asarray(x, np.int64) for x in (y, u, v))
    y, u, v = np.maximum(y - 16, 0) * 1220542, u - 128, v - 128
    r = (y + 1673527 * v + (1 << 19)) >> 20
    g = (y - 852492 * v - 409993 * u + (1 << 19)) >> 20
    b = (y + 2116026 * u + (1 << 19)) >> 20
    return np.clip(np.stack([r, g, b], axis=-1), 0, 255).astype(np.uint8)


def upsample(half: np.ndarray, rows: int = 1) -> np.ndarray:
    return half.repeat(rows, axis=0).repeat(2, axis=1)


UYVY = yuv_to_rgb(YUV[..., 1], upsample(YUV[:, ::2, 0]), upsample(YUV[:, 1::2, 0]))
YUYV = yuv_to_rgb(YUV[..., 0], upsample(YUV[:, ::2, 1]), upsample(YUV[:, 1::2, 1]))
UV = PLANES[H:].reshape(H // 2, W // 2, 2)
NV12 = yuv_to_rgb(PLANES[:H], upsample(UV[..., 0], 2), upsample(UV[..., 1], 2))
NV21 = yuv_to_rgb(PLANES[:H], upsample(UV[..., 1], 2), upsample(UV[..., 0], 2))

EXPECTED = {
    "rgb8": (RGB, RGB),
    "bgr8": (RGB[..., ::-1], RGB),
    "8UC3": (RGB[..., ::-1], RGB),
    "rgba8": (np.concatenate([RGB, ALPHA], axis=2), RGB),
    "bgra8": (np.concatenate([RGB[..., ::-1], ALPHA], axis=2), RGB),
    "8UC4": (np.concatenate([RGB[..., ::-1], ALPHA], axis=2), RGB),
    "mono8": (GRAY, GRAY[..., None].repeat(3, axis=2)),
    "8UC1": (GRAY, GRAY[..., None].repeat(3, axis=2)),
    "uyvy": (YUV, UYVY),
    "yuv422": (YUV, UYVY),
    "yuyv": (YUV, YUYV),
    "yuv422_yuy2": (YUV, YUYV),
    "nv12": (PLANES, NV12),
    "nv21": (PLANES, NV21),
    "bayer_rggb8": (GRAY, cv2.cvtColor(GRAY, cv2.COLOR_BayerRGGB2RGB)),
    "bayer_bggr8": (GRAY, cv2.cvtColor(GRAY, cv2.COLOR_BayerBGGR2RGB)),
    "bayer_gbrg8": (GRAY, cv2.cvtColor(GRAY, cv2.COLOR_BayerGBRG2RGB)),
    "bayer_grbg8": (GRAY, cv2.cvtColor(GRAY, cv2.COLOR_BayerGRBG2RGB)),
}


def convert(view) -> np.ndarray:
    out = np.full((view.height, view.width, 3), 0xAA, np.uint8)
    write_rgb(view, out)
    return out


def test_every_encoding_is_specified():
    assert set(EXPECTED) == set(ENCODINGS)


@pytest.mark.parametrize("padding", [0, 1, 22])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_becomes_rgb_bit_for_bit_with_any_row_padding(encoding, padding):
    """The order of bytes matters only where a number has several."""
    source, expected = EXPECTED[encoding]
    rows = np.ascontiguousarray(source).reshape(len(source), -1)
    view = make_view(pad_rows(rows, padding), H, W, encoding, step=rows.shape[1] + padding)
    for is_bigendian in (False, True):
        np.testing.assert_array_equal(convert(replace(view, is_bigendian=is_bigendian)), expected)


if importlib.util.find_spec("cv_bridge"):

    @pytest.mark.parametrize(
        "encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8", "yuv422", *(f"bayer_{p}8" for p in BAYER)]
    )
    def test_is_what_cv_bridge_makes_of_it(encoding):
        """Of the encodings that it knows in every distribution."""
        from cv_bridge import CvBridge
        from sensor_msgs.msg import Image

        source, _ = EXPECTED[encoding]
        rows = np.ascontiguousarray(source).reshape(len(source), -1)
        message = Image(height=H, width=W, encoding=encoding, step=rows.shape[1], data=rows.tobytes())
        np.testing.assert_array_equal(
            convert(make_view(rows.tobytes(), H, W, encoding, step=rows.shape[1])),
            CvBridge().imgmsg_to_cv2(message, "rgb8"),
        )


@pytest.mark.parametrize("encoding", ["bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"])
@pytest.mark.parametrize("colour", [(200, 0, 0), (0, 150, 0), (0, 0, 90), (10, 120, 250)])
def test_a_bayer_pattern_of_one_colour_is_that_colour(encoding, colour):
    places = encoding.removeprefix("bayer_")[:4]
    mosaic = np.zeros((H, W), np.uint8)
    for i, letter in enumerate(places):
        mosaic[i // 2 :: 2, i % 2 :: 2] = colour["rgb".index(letter)]
    np.testing.assert_array_equal(
        convert(make_view(mosaic.tobytes(), H, W, encoding)), np.full((H, W, 3), colour)
    )


def test_the_last_row_needs_no_padding():
    data = pad_rows(RGB.reshape(H, -1), 5)[:-5]
    np.testing.assert_array_equal(convert(make_view(data, H, W, "rgb8", step=3 * W + 5)), RGB)


def test_it_writes_the_slot_and_nothing_around_it():
    pool = np.full((3, H, W, 3), 0xAA, np.uint8)
    write_rgb(make_view(RGB.tobytes(), H, W, "bgr8"), pool[1])
    np.testing.assert_array_equal(pool[1], RGB[..., ::-1])
    assert (pool[[0, 2]] == 0xAA).all()


@pytest.mark.parametrize(
    ("view", "facts"),
    [
        (make_view(bytes(120), H, W, "16UC1"), "'16UC1' .*8-bit colour"),
        (make_view(bytes(120), H, W, "rgb16"), "'rgb16'"),
        (make_view(bytes(60), H, W, ""), "encoding ''"),
        (make_view(bytes(174), H, W, "rgb8", step=29), "step is 29, .* 30 bytes of 10 rgb8 pixels"),
        (make_view(bytes(179), H, W, "rgb8", step=30), "179 bytes .*6 rows of step 30 need 180"),
        (make_view(bytes(60), H, W, "nv21", step=10), "60 bytes .*9 rows of step 10 need 90"),
        (make_view(bytes(18), 1, 9, "yuv422", step=18), "1 x 9, but yuv422"),
        (make_view(bytes(99), 5, 10, "nv12", step=10), "5 x 10, but nv12"),
        (make_view(b"", 0, 0, "bgr8", step=0), "0 x 0 bgr8 has no pixels"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_sentence(view, facts):
    with pytest.raises(ValueError, match=facts):
        convert(view)


def test_a_slot_of_another_size_is_refused():
    view = make_view(RGB.tobytes(), H, W, "rgb8")
    for out in (
        np.zeros((H, W, 4), np.uint8),
        np.zeros((W, H, 3), np.uint8),
        np.zeros((H, W, 3), np.float32),
    ):
        with pytest.raises(ValueError, match=r"6 x 10.*uint8 \[6, 10, 3\]"):
            write_rgb(view, out)


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
