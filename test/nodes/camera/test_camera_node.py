"""The camera node films into a ring, for viewers too, and neither end's death leaves anything."""

from __future__ import annotations

import signal

import cv2
import numpy as np
import pytest
from running import until
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from vla_accel_msgs.msg import FrameHandle
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.camera.output import Due
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.cameras.frames import Lease
from vla_accel_ros.sensing.cameras.ring import ring_name
from vla_accel_ros.sensing.cameras.ring_reader import RingReader
from vla_accel_ros.sensing.segment import segment_path

H, W = 48, 64
S = 1_000_000_000
CALIBRATION = f"""
image_width: {W}
image_height: {H}
camera_matrix: {{data: [50, 0, 31.5, 0, 50, 23.5, 0, 0, 1]}}
distortion_coefficients: {{data: [0, 0, 0, 0, 0]}}
"""


def heard(operator: Operator, kind: type, topic: str) -> list:
    """What comes on a topic, from now on."""
    messages: list = []

    def on_message(message: object) -> None:
        messages.append(message)
        operator.changed()

    operator.node.create_subscription(kind, topic, on_message, qos.SENSOR)
    return messages


@pytest.fixture
def pictures(tmp_path):
    """A folder of one picture, and that picture as RGB."""
    rgb = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 256, (H, W, 3), np.uint8), (0, 0), 3)
    folder = tmp_path / "pictures"
    folder.mkdir()
    cv2.imwrite(str(folder / "0.png"), rgb[..., ::-1])
    return folder, rgb


@pytest.fixture
def ring(operator) -> str:
    return ring_name(operator.node.context.get_domain_id(), "", "front")


def taken(reader: RingReader, handles: list, known: int = 0) -> tuple[np.ndarray, FrameHandle] | None:
    """The pixels of the newest handle beyond the known ones, and the handle."""
    if len(handles) <= known:
        return None
    lease = reader.take(convert.handle_from_message(handles[-1]))
    if not isinstance(lease, Lease):
        return None
    with lease:
        return lease.frames["front"].image.copy(), handles[-1]


def test_frames_go_into_the_ring_and_to_viewers_with_the_calibration(
    start, operator, pictures, ring, tmp_path
):
    folder, rgb = pictures
    (tmp_path / "front.yaml").write_text(CALIBRATION)
    handles = heard(operator, FrameHandle, "camera/front/frame")
    images = heard(operator, Image, "camera/front/image_raw")
    jpegs = heard(operator, CompressedImage, "camera/front/image_raw/compressed")
    infos = heard(operator, CameraInfo, "camera/front/camera_info")
    parameters = {"camera_info": str(tmp_path / "front.yaml"), "image_hz": 5.0, "jpeg_hz": -1.0, "fps": 20.0}
    node = start("camera", source=str(folder), **parameters)
    operator.wait(lambda: handles and images and jpegs and infos, 90.0, "frame by every way")
    with RingReader({"front": ring}, page_lock=False) as reader:
        pixels, handle = operator.wait(lambda: taken(reader, handles), 90.0, "frame of a handle")
    np.testing.assert_array_equal(pixels, rgb)
    assert (handle.ring, handle.encoding, handle.header.frame_id) == (
        ring,
        "rgb8",
        "front_camera_optical_frame",
    )
    assert abs(operator.now_ns() - convert.stamp_ns(handle.header.stamp)) < 5 * S
    np.testing.assert_array_equal(np.frombuffer(images[-1].data, np.uint8).reshape(H, W, 3), rgb)
    bgr = cv2.imdecode(np.frombuffer(jpegs[-1].data, np.uint8), cv2.IMREAD_COLOR)
    assert bgr is not None
    decoded = bgr[..., ::-1]
    assert np.abs(decoded.astype(int) - rgb).mean() < 4
    assert (infos[-1].width, infos[-1].height, infos[-1].k[2]) == (W, H, 31.5)
    count = len(images)
    operator.wait(lambda: len(images) > count + 4, 90.0, "images")
    assert len(handles) > 2 * len(images) and len(jpegs) > 2 * len(images)
    assert node.end() == 0 and not segment_path(ring).exists()


def test_killed_it_comes_back_under_the_same_name_and_readers_follow(start, operator, pictures, ring):
    folder, rgb = pictures
    handles = heard(operator, FrameHandle, "camera/front/frame")
    node = start("camera", source=str(folder))
    with RingReader({"front": ring}, copy=False, page_lock=False) as reader:
        operator.wait(lambda: taken(reader, handles), 90.0, "frame")
        lease = reader.newest("front")
        node.kill()
        np.testing.assert_array_equal(lease.frames["front"].image, rgb)
        node.start()
        count = len(handles)
        operator.wait(lambda: taken(reader, handles, count), 90.0, "frame of the new process")
        assert reader.counts("front").opened == 2
        assert node.end(signal.SIGINT) == 0
        until(lambda: not segment_path(ring).exists(), 90.0, "end of the ring")


def test_pictures_of_another_size_make_a_new_ring(start, operator, pictures, ring):
    folder, _ = pictures
    cv2.imwrite(str(folder / "1.png"), np.zeros((2 * H, W, 3), np.uint8))
    handles = heard(operator, FrameHandle, "camera/front/frame")
    start("camera", source=str(folder), fps=4.0)
    with RingReader({"front": ring}, page_lock=False) as reader:
        sizes: set[int] = set()

        def both() -> bool:
            lease = taken(reader, handles)
            if lease is not None:
                sizes.add(lease[0].shape[0])
            return sizes == {H, 2 * H}

        operator.wait(both, 90.0, "frame of both sizes")


def test_a_device_that_is_not_there_is_said_once_and_tried_again(start, operator):
    node = start("camera", source="/dev/video99")
    node.wait_for_log("camera front: /dev/video99 cannot be opened: check that it exists")
    operator.wait(
        lambda: (
            "camera: camera front" in operator.diagnostics
            and "cannot be opened" in operator.diagnostics["camera: camera front"].message
        ),
        90.0,
        "diagnostics",
    )
    assert node.end() == 0 and node.log.count("check that it exists") == 1


def test_a_second_camera_of_that_name_says_who_has_it(start, operator, pictures):
    folder, _ = pictures
    handles = heard(operator, FrameHandle, "camera/front/frame")
    first = start("camera", source=str(folder))
    operator.wait(lambda: handles, 90.0, "frame")
    second = start("camera", source=str(folder))
    second.wait_for_log(f"is being written by process {first.process.pid}: stop that, or choose another name")
    count = len(handles)
    operator.wait(lambda: len(handles) > count + 5, 90.0, "frames of the first")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"source": "/no/such/film.mp4"}, "which is neither a file nor a folder here"),
        ({"source": "/tmp", "camera_info": "/no/such.yaml"}, "No such file or directory: '/no/such.yaml'"),
        ({"source": "{folder}", "ring": False, "image_hz": 0.0}, "set ring to true"),
        *(
            (
                {"source": "{folder}", "camera": name},
                f"camera is {name!r}: give a name of letters, digits and",
            )
            for name in ("left/front", "vorn_é", "2nd", "c" * 65)
        ),
    ],
)
def test_what_cannot_work_ends_the_process_with_one_sentence(start, pictures, parameters, sentence):
    texts = {k: v.format(folder=pictures[0]) if isinstance(v, str) else v for k, v in parameters.items()}
    node = start("camera", **texts)
    assert node.process.wait(60.0) == 2
    assert f"cannot start: {sentence}" in node.log or sentence in node.log


@pytest.mark.parametrize(
    ("rate_hz", "expected"),
    [(0.0, 0), (-1.0, 300), (30.0, 300), (60.0, 300), (10.0, 100), (20.0, 200), (1.0, 10)],
)
def test_of_thirty_frames_a_second_as_many_are_due_as_asked_for(rate_hz, expected):
    rng, due = np.random.default_rng(0), Due(rate_hz)
    stamps = [round(1000 * S + k * S / 30 + rng.uniform(-2e6, 2e6)) for k in range(300)]
    assert abs(sum(due(stamp) for stamp in stamps) - expected) <= 2


def test_after_the_clock_was_set_back_frames_are_due_again():
    due = Due(10.0)
    assert due(1000 * S) and not due(1000 * S + S // 30)
    assert due(500 * S) and not due(500 * S + S // 30) and due(500 * S + S // 10)
