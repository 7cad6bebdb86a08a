"""What a robot sends of what it sees: bytes as they came, pixels as they are, and no torch."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.replicas.decoding import decoded
from vla_accel_ros.fleet.robot.observing import EncodedIngest
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.ingest import Ingest

S, MS = 1_000_000_000, 1_000_000
NOW = 100 * S
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
JPEG = bytes(cv2.imencode(".jpg", PIXELS)[1])
PNG = bytes(cv2.imencode(".png", PIXELS)[1])


@pytest.fixture
def contract(contract: Contract) -> Contract:
    """Camera front sends compressed pictures, wrist pixels."""
    front, wrist = contract.cameras
    return replace(contract, cameras=(replace(front, transport="compressed"), wrist))


def compressed(data: bytes, stamp_ns: int) -> bytes:
    message = CompressedImage(format="jpeg", data=data)
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, S)
    return serialize_message(message)


def make_ingest(contract: Contract, jpeg_quality: int | None = None, data: bytes = JPEG) -> EncodedIngest:
    """One that has seen a picture of each camera, and the joints."""
    ingest = EncodedIngest(contract, jpeg_quality=jpeg_quality)
    ingest.instruct("reach", "nothing to do")
    ingest.compressed("front", compressed(data, NOW), NOW)
    ingest.image("wrist", bytes(image_message(NOW + MS, "", PIXELS)), NOW)
    ingest.joints(contract.joint_names, [0.1 * i for i in range(6)], NOW, NOW)
    return ingest


@pytest.mark.parametrize("data", [JPEG, PNG])
def test_compressed_pictures_go_on_as_they_came_and_pixels_as_they_are(contract, data):
    ingest = make_ingest(contract, data=data)
    seen = ingest.encoded(NOW)
    assert seen.images["front"] == data
    np.testing.assert_array_equal(seen.images["wrist"], PIXELS)
    assert seen.stamps_ns == {"front": NOW, "wrist": NOW + MS}
    assert (seen.stamp_ns, seen.instruction) == (NOW, "reach")
    np.testing.assert_allclose(seen.state, 0.1 * np.arange(6), rtol=1e-6)


def test_the_scheduler_turns_and_crops_as_the_robot_itself_would(contract):
    """A JPEG goes on as the camera made it, so what the network gets is made where it is decoded."""
    turned = tuple(replace(camera, rotation=90, crop=0.5) for camera in contract.cameras)
    contract = replace(contract, cameras=turned)
    ingest, local = make_ingest(contract), Ingest(contract, page_lock=False)
    local.instruct("reach", "")
    local.compressed("front", compressed(JPEG, NOW), NOW)
    local.image("wrist", bytes(image_message(NOW + MS, "", PIXELS)), NOW)
    local.joints(contract.joint_names, [0.1 * i for i in range(6)], NOW, NOW)
    sent = ingest.encoded(NOW)
    assert sent is not None
    assert sent.images["front"] == JPEG and sent.images["wrist"].shape == PIXELS.shape
    here = local.observe(NOW)
    assert here is not None
    there = decoded(sent, contract, "arm")
    for image, pixels in here.images.items():
        assert pixels.shape == (PIXELS.shape[1] // 2, PIXELS.shape[0] // 2, 3)
        np.testing.assert_array_equal(there.images[image], pixels)


def test_the_bytes_are_those_of_the_picture_that_was_observed(contract):
    ingest = make_ingest(contract)
    for number in range(1, 4):
        stamp_ns = NOW + 33 * number * MS
        data = bytes(cv2.imencode(".jpg", np.full_like(PIXELS, number))[1])
        ingest.compressed("front", compressed(data, stamp_ns), stamp_ns)
    ingest.image("wrist", bytes(image_message(NOW + 67 * MS, "", PIXELS)), NOW)
    ingest.joints(contract.joint_names, [0.0] * 6, NOW + 70 * MS, NOW)
    seen = ingest.encoded(NOW + 100 * MS)
    shown = cv2.imdecode(np.frombuffer(seen.images["front"], np.uint8), cv2.IMREAD_COLOR)
    number = round((seen.stamps_ns["front"] - NOW) / (33 * MS))
    assert number > 0 and (shown == number).all()


def test_nothing_new_is_nothing_to_send_and_what_lacks_is_said(contract):
    ingest = make_ingest(contract)
    assert ingest.encoded(NOW) is not None and ingest.encoded(NOW) is None
    assert ingest.waiting_for == ""
    assert ingest.encoded(NOW + 2 * S) is None
    empty = EncodedIngest(contract)
    assert empty.encoded(NOW) is None and empty.waiting_for


def test_pixels_travel_as_jpeg_where_that_is_asked_for(contract):
    ingest = make_ingest(contract, jpeg_quality=95)
    colour = np.full((24, 32, 3), (200, 30, 90), np.uint8)
    ingest.image("wrist", bytes(image_message(NOW + 2 * MS, "", colour)), NOW)
    seen = ingest.encoded(NOW)
    assert seen is not None and seen.images["front"] == JPEG and seen.stamps_ns["wrist"] == NOW + 2 * MS
    shown = cv2.imdecode(np.frombuffer(seen.images["wrist"], np.uint8), cv2.IMREAD_COLOR)
    assert shown is not None and shown.shape == colour.shape
    assert np.abs(shown[..., ::-1].astype(int) - colour).max() <= 4


def test_a_picture_to_look_at_is_the_newest_in_its_colours_compressed_or_not(contract):
    colour = np.full((480, 640, 3), (200, 30, 90), np.uint8)
    ingest = make_ingest(contract, data=bytes(cv2.imencode(".jpg", colour[..., ::-1])[1]))
    ingest.image("wrist", bytes(image_message(NOW + 2 * MS, "", colour)), NOW)
    for camera in ("front", "wrist"):
        shown = ingest.picture(camera)
        assert shown is not None and max(shown.shape) < 200
        assert np.abs(shown.astype(int) - (200, 30, 90)).max() <= 4
    assert EncodedIngest(contract).picture("front") is None


def test_the_size_of_a_compressed_camera_is_that_of_its_pictures(contract):
    ingest = make_ingest(contract)
    assert ingest.mismatch("front", 24, 32) == ""
    mismatch = ingest.mismatch("front", 480, 640)
    assert "24 x 32" in mismatch and "480 x 640" in mismatch


def test_a_damaged_picture_is_refused_and_counted(contract):
    ingest = make_ingest(contract)
    with pytest.raises(ValueError, match=r"camera front: .*without its end"):
        ingest.compressed("front", compressed(JPEG[:-20], NOW), NOW)
    assert ingest.refused["front"] == 1
