"""Earlier frames of a camera: which of them a policy gets, by stamps that are written here by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from rings import left_over, unique
from sensor_msgs.msg import CompressedImage
from streams import MS, TASK, S, make_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.replicas.decoding import decoded
from vla_accel_ros.fleet.robot.observing import EncodedIngest
from vla_accel_ros.sensing.cameras.frames import FramePool
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.cameras.ring import RingWriter
from vla_accel_ros.sensing.cameras.ring_reader import RingReader
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.inputs import RobotInputs
from vla_accel_ros.types import Observation

NOW = 100 * S
NEWEST, BEFORE, FIRST = "base_0_rgb", "before", "first"
SIDE = 16
PIXELS = np.zeros((SIDE, SIDE, 3), np.uint8)


def contract_of(
    transport: str = "raw",
    rate_hz: float = 10.0,
    history: tuple[tuple[str, float], ...] = ((FIRST, 0.4), (BEFORE, 0.2)),
) -> Contract:
    """One camera, at 10 Hz, whose frames of 0.2 s and 0.4 s before are further images."""
    contract = make_contract()
    front = replace(contract.cameras[0], transport=transport, rate_hz=rate_hz, history=history)
    return replace(contract, cameras=(front,))


class Camera:
    """A camera that writes its frames' numbers into all pixels, and what its robot observes.

    in_place: frames of a ring are used where they are, as with a GPU.
    """

    def __init__(
        self, transport: str = "raw", in_place: bool = False, contract: Contract | None = None
    ) -> None:
        self.contract, self.ring = contract or contract_of(transport), unique("history")
        self.ingest = Ingest(self.contract, copy=False if in_place else None, page_lock=False)
        self.ingest.instruct(TASK, "")
        self.writer = RingWriter(self.ring, SIDE, SIDE, slots=3) if transport == "ring" else None

    def send(self, stamp_ns: int, number: int, side: int = SIDE) -> None:
        """A frame, and the joints of its time."""
        pixels, transport = np.full((side, side, 3), number, np.uint8), self.contract.cameras[0].transport
        self.ingest.joints(self.contract.joint_names, [0.0] * 6, stamp_ns, stamp_ns)
        if self.writer is not None:
            self.ingest.handle("front", self.writer.write(pixels, stamp_ns), stamp_ns)
        elif transport == "compressed":
            message = CompressedImage(format="png", data=cv2.imencode(".png", pixels)[1].tobytes())
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, S)
            self.ingest.compressed("front", serialize_message(message), stamp_ns)
        else:
            self.ingest.image("front", bytes(image_message(stamp_ns, "front", pixels)), stamp_ns)

    def film(self, stamps_ms: Sequence[int], first: int = 0) -> None:
        """Frames of these stamps, which are numbered as they arrive."""
        for number, stamp_ms in enumerate(stamps_ms, first):
            self.send(NOW + stamp_ms * MS, number)

    def observe(self, now_ms: int) -> Observation | None:
        return self.ingest.observe(NOW + now_ms * MS)

    def numbers(self, now_ms: int) -> dict[str, int]:
        """The frames that the policy gets, by image."""
        observation = self.observe(now_ms)
        assert observation is not None, self.ingest.waiting_for
        for pixels in observation.images.values():
            assert (pixels == pixels[0, 0, 0]).all()
        return {image: int(pixels[0, 0, 0]) for image, pixels in observation.images.items()}

    def close(self) -> None:
        self.ingest.close()
        if self.writer is not None:
            self.writer.close()
        assert left_over(self.ring) == []


@pytest.fixture(params=["raw", "compressed", "ring copied", "ring in place"])
def camera(request: pytest.FixtureRequest) -> Iterator[Camera]:
    transport, _, manner = request.param.partition(" ")
    camera = Camera(transport, manner == "in place")
    yield camera
    camera.close()


CASES = {
    # stamps [ms] in order of arrival -> numbers of the newest, of 0.2 s and of 0.4 s before
    "regular": ([0, 100, 200, 300, 400], (4, 2, 0)),
    "more than is needed": (list(range(0, 3001, 100)), (30, 28, 26)),
    "uneven": ([0, 95, 210, 290, 405, 512], (5, 3, 1)),  # wanted: 312 and 112
    "one was late": ([0, 100, 300, 200, 400], (4, 3, 0)),
    "late, and not needed": ([0, 200, 100, 300, 400], (4, 1, 0)),
    "repeated": ([0, 0, 100, 200, 200, 300, 400], (6, None, None)),  # either of two: see below
    "too few yet": ([0, 100, 200, 300], (3,)),
    "a gap where one was": ([0, 100, 300, 400], (3,)),
    "a gap, and all there again": ([0, 900, 1000, 1100, 1200, 1300], (5, 3, 1)),
    "too far from the time": ([0, 100, 151, 300, 400], (4,)),  # 49 ms from 200 is too far
    "as far as it may be": ([0, 100, 152, 300, 400], (4, 2, 0)),
    "silent, then back": ([0, 100, 200, 300, 400, 5000, 5100], (6,)),
    "its clock set back far": ([60_000, 60_100, 60_200, 60_300, 60_400, 0, 100, 200, 300, 400], (9, 7, 5)),
    "its clock set back, not long ago": ([0, 200, 400, 600, 800, 1000, 400], (6,)),
}


@pytest.mark.parametrize("name", CASES)
def test_history_is_the_frames_nearest_to_their_times_or_the_newest_alone(camera: Camera, name: str) -> None:
    stamps, expected = CASES[name]
    camera.film(stamps)
    numbers = camera.numbers(stamps[-1])
    assert list(numbers) == [NEWEST, FIRST, BEFORE][: len(expected)]
    for image, number in zip((NEWEST, BEFORE, FIRST), expected):
        if number is not None:
            assert numbers[image] == number
    if name == "repeated":
        assert stamps[numbers[BEFORE]] == 200 and stamps[numbers[FIRST]] == 0
    incomplete = camera.ingest.history.incomplete
    assert incomplete == (len(expected) == 1)


def test_history_stamps_are_known_and_the_newest_is_what_the_observation_is_of(camera: Camera) -> None:
    camera.film([0, 95, 210, 290, 405, 512])
    observation = camera.observe(512)
    assert observation is not None and observation.stamp_ns == NOW + 512 * MS
    stamps_ms = {image: (stamp - NOW) // MS for image, stamp in observation.stamps_ns.items()}
    assert stamps_ms == {NEWEST: 512, BEFORE: 290, FIRST: 95}


def test_history_begins_anew_after_a_jump_of_the_clock_and_with_another_size() -> None:
    camera = Camera()
    camera.film([0, 100, 200, 300, 400])
    camera.ingest.clear()
    camera.film([100, 200, 300, 400], first=10)
    assert camera.numbers(400) == {NEWEST: 13}
    camera.film([500], first=14)
    assert camera.numbers(500) == {NEWEST: 14, BEFORE: 12, FIRST: 10}
    for step in range(5):
        camera.send(NOW + (600 + 100 * step) * MS, 20 + step, side=2 * SIDE)
        assert camera.numbers(600 + 100 * step)[NEWEST] == 20 + step
    observation = camera.observe(1100)
    assert observation is None
    camera.send(NOW + 1100 * MS, 25, side=2 * SIDE)
    assert camera.numbers(1100) == {NEWEST: 25, BEFORE: 23, FIRST: 21}


def test_history_that_is_in_use_keeps_its_pixels_and_costs_the_camera_no_frame(camera: Camera) -> None:
    camera.film(range(0, 1000, 100))
    observation = camera.observe(900)
    assert observation is not None
    for number in range(10, 60):
        camera.send(NOW + number * 100 * MS, number)
        numbers = {image: int(pixels.max()) for image, pixels in observation.images.items()}
        assert numbers == {NEWEST: 9, BEFORE: 7, FIRST: 5} and observation.intact()
    assert camera.ingest.lost("front") == 0
    assert camera.numbers(5900) == {NEWEST: 59, BEFORE: 57, FIRST: 55}


def test_history_is_whole_at_every_frame_of_a_fast_camera_whose_observations_are_slow() -> None:
    """As of mimic-video: at 30 Hz 0.2 s are 6 frames. An observation is in use until the next is made, for
    up to 40 periods, and may be of any frame."""
    history = tuple((f"before_{steps}", 0.2 * steps) for steps in range(1, 5))
    camera = Camera(contract=contract_of(rate_hz=30.0, history=history))
    due = 24
    for number in range(400):
        camera.send(NOW + round(number * S / 30), number % 200)
        if number == due:
            observation = camera.ingest.observe(NOW + round(number * S / 30))
            assert observation is not None
            numbers = {image: int(pixels[0, 0, 0]) for image, pixels in observation.images.items()}
            earlier = {image: (number - 6 * steps) % 200 for steps, (image, _) in enumerate(history, 1)}
            assert numbers == {NEWEST: number % 200, **earlier}
            due += 1 + number * 7 % 40
    assert camera.ingest.lost("front") == 0 and camera.ingest.history.incomplete == 0


def test_history_that_a_policy_needs_is_waited_for_and_named() -> None:
    camera = Camera()
    camera.ingest = Ingest(camera.contract, page_lock=False, least_images=3)
    camera.ingest.instruct(TASK, "")
    camera.film([0, 100, 200, 300])
    assert camera.observe(300) is None
    assert FIRST in camera.ingest.waiting_for and "camera/front/image_raw" in camera.ingest.waiting_for
    camera.film([400], first=4)
    assert camera.numbers(400) == {NEWEST: 4, BEFORE: 2, FIRST: 0} and not camera.ingest.waiting_for


@pytest.mark.parametrize("transport", ["raw", "compressed", "ring"])
def test_history_that_a_fleet_gets_is_what_the_robot_itself_would_use(transport: str) -> None:
    camera = Camera(transport)
    here, contract = camera.ingest, camera.contract
    camera.film([0, 95, 210, 290, 405, 512])
    local = camera.observe(512)
    camera.ingest = EncodedIngest(contract)
    camera.ingest.instruct(TASK, "")
    camera.film([0, 95, 210, 290, 405, 512])
    sent = camera.ingest.encoded(NOW + 512 * MS)
    assert local is not None and sent is not None and sent.images.keys() == {"front", BEFORE, FIRST}
    there = decoded(sent, contract, "arm")
    assert there.stamps_ns == local.stamps_ns and there.stamp_ns == local.stamp_ns
    assert {image: int(pixels.max()) for image, pixels in there.images.items()} == {
        NEWEST: 5,
        BEFORE: 3,
        FIRST: 1,
    }
    partial = {name: image for name, image in sent.images.items() if name != FIRST}
    with pytest.raises(ValueError, match=f"images of .*{BEFORE}.*cameras are .*{FIRST}"):
        decoded(replace(sent, images=partial), contract, "arm")
    here.close()
    camera.close()


def test_history_of_one_camera_is_not_used_beside_one_whose_own_is_not_there() -> None:
    arm = make_contract()
    cameras = (
        replace(arm.cameras[0], rate_hz=10.0, history=((BEFORE, 0.2),)),
        replace(arm.cameras[1], rate_hz=10.0, history=((FIRST, 0.4),)),
    )
    contract = replace(arm, cameras=cameras)
    ingest = Ingest(contract, page_lock=False)
    images = []
    for stamp_ns in range(NOW, NOW + 500 * MS, 100 * MS):
        ingest.joints(contract.joint_names, [0.0] * 6, stamp_ns, stamp_ns)
        for camera in cameras:
            ingest.image(camera.name, bytes(image_message(stamp_ns, "", PIXELS)), stamp_ns)
        observation = ingest.observe(stamp_ns, TASK)
        assert observation is not None
        images.append(set(observation.images))
    newest = {camera.image for camera in cameras}
    assert images == [newest] * 4 + [{*newest, BEFORE, FIRST}]


def test_history_is_counted_in_diagnostics_while_it_is_not_complete() -> None:
    camera = Camera()
    inputs = RobotInputs(camera.contract, camera.ingest)
    inputs.instruct(TASK)
    for number in range(7):
        camera.send(NOW + number * 100 * MS, number)
        assert camera.observe(number * 100) is not None
    (state,) = (state for state in inputs.stream_states(NOW + 600 * MS) if state.name == "front")
    assert state.values["observations without history"] == 4


def test_history_takes_no_frame_of_a_ring_that_was_overwritten_while_it_was_copied() -> None:
    name = unique("history")

    class Slow(FramePool):
        """The writer writes so many frames before the copy is made."""

        frames = 0

        @contextmanager
        def write(self, *frame: Any) -> Iterator[np.ndarray | None]:
            with super().write(*frame) as slot:
                for number in range(1, 1 + self.frames):
                    writer.write(np.full_like(PIXELS, number), NOW + number)
                yield slot

    with RingWriter(name, SIDE, SIDE, slots=3) as writer, RingReader({"front": ""}, copy=False) as reader:
        for frames, stamp_ns in ((2, NOW), (3, None)):
            pool = Slow(("front",), page_lock=False)
            pool.frames = frames
            reader.keep("front", writer.write(PIXELS, NOW), pool)
            newest = pool.newest("front")
            assert (newest.frames["front"].stamp_ns if newest else None) == stamp_ns
        assert reader.dropped("front") == 1
    assert left_over(name) == []
