"""Recordings play at their rate, devices that are not there say so, and what is no source is refused."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vla_accel_ros.sensing.cameras.calibration import Calibration
from vla_accel_ros.sensing.cameras.capture import Played, Settings, Shot, open_source

H, W = 48, 64
YAML = """
image_width: 64
image_height: 48
camera_name: front
camera_matrix: {rows: 3, cols: 3, data: [50, 0, 31.5, 0, 51, 23.5, 0, 0, 1]}
distortion_model: plumb_bob
distortion_coefficients: {rows: 1, cols: 5, data: [0.1, -0.2, 0.0, 0.0, 0.0]}
rectification_matrix: {rows: 3, cols: 3, data: [1, 0, 0, 0, 1, 0, 0, 0, 1]}
projection_matrix: {rows: 3, cols: 4, data: [50, 0, 31.5, 0, 0, 51, 23.5, 0, 0, 0, 1, 0]}
"""


class Clock:
    """A clock that only waiting moves, and a record of the waits."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds


def level(k: int) -> np.ndarray:
    """A picture that is told by its brightness even after a video codec."""
    return np.full((H, W, 3), 20 * k + 20, np.uint8)


@pytest.fixture
def folder(tmp_path):
    for k in range(3):
        cv2.imwrite(str(tmp_path / f"{k}.png"), level(k))
    (tmp_path / "notes.txt").write_text("not a picture")
    return tmp_path


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25.0, (W, H))
    assert writer.isOpened()
    for k in range(4):
        writer.write(level(k))
    writer.release()
    return path


def played(source, clock: Clock, count: int, **settings) -> list[int | None]:
    """Which pictures the first frames are."""
    capture = open_source(str(source), Settings(**settings), clock.wait, clock)

    def which(shot: Shot | None) -> int | None:
        return None if shot is None else round((int(shot.bgr.mean()) - 20) / 20)

    return [which(capture.next()) for _ in range(count)]


def test_a_folder_is_played_by_name_over_and_over_at_the_rate_asked_for(folder):
    clock = Clock()
    assert played(folder, clock, 7, fps=10.0) == [0, 1, 2, 0, 1, 2, 0]
    np.testing.assert_allclose(clock.waits, [0.1] * 6)


def test_a_video_is_played_at_its_own_rate_and_once_when_asked(video):
    clock = Clock()
    assert played(video, clock, 6, loop=False) == [0, 1, 2, 3, None, None]
    np.testing.assert_allclose(clock.waits, [1 / 25] * 3)
    assert played(video, clock, 5) == [0, 1, 2, 3, 0]


def test_who_is_late_is_not_hurried(folder):
    clock = Clock()
    capture = open_source(str(folder), Settings(fps=10.0), clock.wait, clock)
    capture.next()
    clock.now_s += 5.0
    capture.next()
    capture.next()
    np.testing.assert_allclose(clock.waits, [0.1])


def test_a_shot_of_a_recording_is_of_now_and_bgr(folder):
    cv2.imwrite(str(folder / "0.png"), np.full((H, W, 3), (200, 10, 30), np.uint8))
    clock = Clock()
    shot = open_source(str(folder), Settings(), clock.wait, clock).next()
    assert shot.age_s == 0.0 and shot.bgr.shape == (H, W, 3) and tuple(shot.bgr[0, 0]) == (200, 10, 30)


def test_a_folder_that_is_emptied_meanwhile_is_gone_and_not_the_end(folder):
    clock = Clock()
    capture = open_source(str(folder), Settings(), clock.wait, clock)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(OSError, match="no frames"):
        for _ in range(5):
            capture.next()


@pytest.mark.parametrize("source", ["/dev/video99", "99", "/dev/v4l/by-id/none", "rtsp://127.0.0.1:9/none"])
def test_a_device_that_is_not_there_may_come(source):
    with pytest.raises(OSError, match=f"{source} cannot be opened: check that it exists"):
        open_source(source, Settings())


@pytest.mark.parametrize(
    ("source", "settings", "sentence"),
    [
        ("", {}, "source is empty: give a device"),
        ("/no/such/film.mp4", {}, "which is neither a file nor a folder here: fix the path"),
        ("0", {"fourcc": "MJPEG"}, "fourcc is 'MJPEG': give four letters such as MJPG"),
        ("{folder}/notes.txt", {}, "in which OpenCV finds no frame: give a video file"),
        ("{folder}/empty", {}, "which has no picture"),
        ("{folder}/broken", {}, "broken/1.png', which is not a picture: remove it"),
    ],
)
def test_what_can_never_be_a_source_is_refused(folder, source, settings, sentence):
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "1.png").write_text("nothing")
    with pytest.raises(ValueError, match=sentence):
        open_source(source.format(folder=folder), Settings(**settings))


if not cv2.videoio_registry.hasBackend(cv2.CAP_GSTREAMER):

    def test_a_pipeline_needs_an_opencv_with_gstreamer():
        with pytest.raises(ValueError, match="GStreamer"):
            open_source("videotestsrc ! appsink", Settings())

else:

    def test_a_pipeline_gives_frames():
        capture = open_source(
            "videotestsrc num-buffers=2 ! videoconvert ! video/x-raw,format=BGR ! appsink", Settings()
        )
        assert capture.next().bgr.ndim == 3 and capture.next() is not None
        with pytest.raises(OSError, match="gives no more frames"):
            capture.next()


def test_a_closed_recording_has_ended(folder):
    clock = Clock()
    capture = open_source(str(folder), Settings(), clock.wait, clock)
    assert isinstance(capture, Played) and capture.next() is not None
    capture.close()
    assert capture.next() is None


def test_a_calibration_is_what_the_calibrator_wrote(tmp_path):
    path = tmp_path / "front.yaml"
    path.write_text(YAML)
    calibration = Calibration.load(path)
    assert (calibration.width, calibration.height, calibration.model) == (64, 48, "plumb_bob")
    assert calibration.k[2] == 31.5 and calibration.d[:2] == (0.1, -0.2) and calibration.p[5] == 51.0
    path.write_text(YAML.replace("-0.2", "-5e-05"))  # as ROS writes it, and YAML 1.1 reads as a text
    assert Calibration.load(path).d[1] == -5e-05
    path.write_text(YAML.replace("projection_matrix", "other").replace("rectification_matrix", "another"))
    without = Calibration.load(path)
    assert (without.p, without.r) == (calibration.p, calibration.r)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("image_width: 64", "image_width: wide", "image_width is 'wide': give the image's size"),
        (
            "data: [50, 0, 31.5, 0, 51, 23.5, 0, 0, 1]",
            "data: [50, 0]",
            "camera_matrix.data is .*give 9 numbers",
        ),
        ("[0.1, -0.2, 0.0, 0.0, 0.0]", "[a]", "distortion_coefficients.data is .*: give numbers"),
        ("[0.1, -0.2, 0.0, 0.0, 0.0]", "[.nan, 0]", "distortion_coefficients.data is .*: give numbers"),
        ("data: [50, 0, 31.5", "data: [.inf, 0, 31.5", "camera_matrix.data is .*give 9 numbers"),
        ("data: [50, 0, 31.5", f"data: [{10**400}, 0, 31.5", "camera_matrix.data is .*give 9 numbers"),
        ("image_width: 64", "image_width: 99999999999", "image_width is 99999999999: give the image's size"),
        ("projection_matrix: {", "projection_matrix: [", "is not a YAML file"),
        (YAML, "just words", "has no fields"),
    ],
)
def test_a_calibration_that_is_wrong_is_refused(tmp_path, old, new, sentence):
    path = tmp_path / "front.yaml"
    path.write_text(YAML.replace(old, new))
    with pytest.raises(ValueError, match=sentence):
        Calibration.load(path)
