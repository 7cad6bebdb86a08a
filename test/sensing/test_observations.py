"""An observation is one instant of the robot, or a sentence that says what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from streams import MS, SIM_ARM, S, make_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.ingest import NO_INSTRUCTION, Ingest
from vla_accel_ros.types import Observation

TASK = "reach the red block"


def make_ingest(contract: Contract | None = None) -> Ingest:
    ingest = Ingest(contract or make_contract(), page_lock=False)
    ingest.instruct(TASK, "")
    return ingest


def add_frame(ingest: Ingest, camera: str, stamp_ns: int, value: int = 0, now_ns: int | None = None) -> None:
    message = image_message(stamp_ns, camera, np.full((4, 5, 3), value, np.uint8))
    ingest.image(camera, bytes(message), stamp_ns if now_ns is None else now_ns)


def add_joints(ingest: Ingest, *stamps_ns: int) -> None:
    for stamp_ns in stamps_ns:
        names = make_contract().joint_names
        ingest.joints(names, (np.arange(6) * 0.1 + stamp_ns / S).tolist(), stamp_ns, stamp_ns)


def make_ready() -> Ingest:
    ingest = make_ingest()
    add_joints(ingest, 0, 10 * MS, 20 * MS)
    add_frame(ingest, "front", 4 * MS, value=1)
    add_frame(ingest, "wrist", 8 * MS, value=2)
    return ingest


def why_not(ingest: Ingest, now_ns: int) -> str:
    assert ingest.observe(now_ns) is None
    return ingest.waiting_for


def test_images_have_the_policys_names_and_the_joints_are_those_of_the_oldest_image():
    observation = make_ready().observe(30 * MS)
    assert isinstance(observation, Observation)
    assert sorted(observation.images) == ["base_0_rgb", "left_wrist_0_rgb"]
    assert (observation.images["base_0_rgb"] == 1).all() and (
        observation.images["left_wrist_0_rgb"] == 2
    ).all()
    assert observation.stamp_ns == 4 * MS and observation.instruction == TASK
    assert observation.state.dtype == np.float32
    np.testing.assert_allclose(observation.state, np.arange(6) * 0.1 + 0.004, rtol=1e-6)


def test_pictures_are_turned_and_cropped_as_the_contract_says():
    contract = make_contract()
    front, wrist = contract.cameras
    cameras = replace(front, rotation=180, crop=0.5), replace(wrist, rotation=90)
    ingest = make_ingest(replace(contract, cameras=cameras))
    add_joints(ingest, 0, 10 * MS, 20 * MS)
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    for camera in ("front", "wrist"):
        ingest.image(camera, bytes(image_message(4 * MS, camera, picture)), 4 * MS)
    observation = ingest.observe(30 * MS)
    assert isinstance(observation, Observation)
    upside_down = picture[::-1, ::-1]
    np.testing.assert_array_equal(observation.images["base_0_rgb"], upside_down[2:6, 3:9])
    clockwise = picture.transpose(1, 0, 2)[:, ::-1]
    np.testing.assert_array_equal(observation.images["left_wrist_0_rgb"], clockwise)
    ingest.info("front", 8, 12)
    assert not ingest.mismatch("front")  # the camera's own size


@pytest.mark.parametrize("rate_hz", [500, 1000, 4000, 10_000])
def test_the_joints_are_those_of_the_image_however_fast_their_driver_is(rate_hz: int):
    contract = make_contract()
    ingest, here = make_ingest(contract), np.arange(6) * 0.1
    for stamp_ns in range(S, 2 * S, S // rate_hz):
        ingest.joints(contract.joint_names, (here + stamp_ns / S).tolist(), stamp_ns, stamp_ns)
    for camera in ("front", "wrist"):
        add_frame(ingest, camera, 2 * S - 450 * MS)
    observation = ingest.observe(2 * S)
    assert isinstance(observation, Observation)
    np.testing.assert_allclose(observation.state, here + 1.55, rtol=1e-6)
    newest = ingest.newest_state()
    assert newest is not None and newest[1] == 2 * S - S // rate_hz


def test_the_state_is_in_the_policys_units(tmp_path: Path):
    path = tmp_path / "degrees.yaml"
    path.write_text(
        SIM_ARM.read_text().replace("name: shoulder_lift,", "name: shoulder_lift, unit: deg, sign: -1,")
    )
    ingest = make_ingest(Contract.load(path))
    ingest.joints(make_contract().joint_names, [0.0, np.pi / 2, 0.0, 0.0, 0.0, 0.0], 0, 0)
    add_frame(ingest, "front", 0)
    add_frame(ingest, "wrist", 0)
    np.testing.assert_allclose(ingest.observe(0).state, [0, -90, 0, 0, 0, 0])


def test_the_same_frames_are_nothing_new():
    ingest = make_ready()
    ingest.observe(30 * MS)
    assert not why_not(ingest, 31 * MS)
    add_frame(ingest, "front", 37 * MS)
    add_joints(ingest, 40 * MS)
    assert isinstance(ingest.observe(50 * MS), Observation)
    assert not why_not(ingest, 50 * MS)


def test_an_observation_keeps_its_pixels_until_the_next_one():
    ingest = make_ready()
    first = ingest.observe(30 * MS)
    ingest.instruct("", NO_INSTRUCTION)
    for t in range(40, 80):
        add_frame(ingest, "front", t * MS, value=t)
        assert why_not(ingest, t * MS)
        assert (first.images["base_0_rgb"] == 1).all()
    ingest.instruct(TASK, "")
    add_frame(ingest, "wrist", 80 * MS)
    add_joints(ingest, 80 * MS)
    second = ingest.observe(80 * MS)
    assert (second.images["base_0_rgb"] == 79).all()
    assert ingest.lost("front") == 0


def test_what_is_observed_gives_the_slots_back():
    ingest = make_ready()
    image = ingest.observe(30 * MS).images["base_0_rgb"]
    ingest.observed()
    ingest.observed()
    for t in range(40, 44):
        add_frame(ingest, "front", t * MS, value=t)
    assert (image != 1).all(), "another frame lies there"


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_without_an_instruction_it_does_nothing(blank):
    ingest = make_ready()
    ingest.instruct(blank, NO_INSTRUCTION)
    assert "no instruction yet: publish one" in why_not(ingest, 30 * MS)


def test_what_is_missing_is_said_and_mended_by_its_arrival():
    ingest = make_ingest()
    assert why_not(ingest, 0) == "no frame of camera front, wrist yet"
    add_frame(ingest, "front", 0)
    assert why_not(ingest, 0) == "no frame of camera wrist yet"
    add_frame(ingest, "wrist", 70 * MS)
    assert "camera front is 0.070 s behind camera wrist" in why_not(ingest, 70 * MS)
    add_frame(ingest, "front", 66 * MS)
    assert why_not(ingest, 70 * MS).startswith("no state of joint shoulder_pan, shoulder_lift")
    add_joints(ingest, 70 * MS)
    assert isinstance(ingest.observe(70 * MS), Observation)


def test_stale_frames_and_far_joints_are_no_observation():
    ingest = make_ready()
    assert why_not(ingest, 510 * MS) == "camera front is 0.506 s old, max_age_s allows 0.5"
    ingest._joints.clear()
    add_joints(ingest, 700 * MS)
    assert why_not(ingest, 300 * MS) == "joint states are 0.696 s from the image, max_age_s allows 0.5"
    add_joints(ingest, 910 * MS)
    add_frame(ingest, "front", 910 * MS)
    add_frame(ingest, "wrist", 910 * MS)
    assert isinstance(ingest.observe(920 * MS), Observation)


@pytest.mark.parametrize(
    ("stamp_ns", "sentence"),
    [
        (0, "images of camera front have no stamp: its driver must stamp them with the time of capture"),
        (12_000 * MS, "camera front stamps its images 2.000 s in the future: synchronise the clocks of its"),
    ],
)
def test_a_camera_without_stamps_or_with_those_of_another_clock_is_named(stamp_ns, sentence):
    ingest, now_ns = make_ingest(), 10_000 * MS
    add_frame(ingest, "front", stamp_ns, now_ns=now_ns)
    add_frame(ingest, "wrist", now_ns)
    add_joints(ingest, now_ns)
    assert why_not(ingest, now_ns).startswith(sentence)
    assert ingest.problem("front", now_ns).startswith(sentence)
    add_frame(ingest, "front", now_ns)
    assert isinstance(ingest.observe(now_ns), Observation)
    assert "stamp" not in ingest.problem("front", now_ns)


def test_frames_that_arrive_after_newer_ones_are_no_observation_and_after_a_jump_they_are():
    ingest = make_ready()
    add_joints(ingest, 30 * MS, 40 * MS)
    for camera in ("front", "wrist"):
        add_frame(ingest, camera, 34 * MS)
    assert ingest.observe(40 * MS).stamp_ns == 34 * MS
    for camera in ("front", "wrist"):
        add_frame(ingest, camera, 20 * MS)
    assert "older than those of the last observation" in why_not(ingest, 41 * MS)
    ingest.clear()
    add_joints(ingest, 20 * MS)
    for camera in ("front", "wrist"):
        add_frame(ingest, camera, 20 * MS)
    assert ingest.observe(41 * MS).stamp_ns == 20 * MS


def test_one_camera_may_come_first_but_none_goes_back():
    ingest = make_ready()
    add_joints(ingest, 30 * MS, 40 * MS)
    add_frame(ingest, "front", 4 * MS)
    add_frame(ingest, "wrist", 4 * MS)
    assert ingest.observe(30 * MS).stamp_ns == 4 * MS
    add_frame(ingest, "front", 34 * MS)
    assert ingest.observe(36 * MS).stamp_ns == 4 * MS
    add_frame(ingest, "front", 14 * MS)  # delivered late, while the other camera still shows its first frame
    assert why_not(ingest, 37 * MS)
    add_frame(ingest, "front", 34 * MS)
    add_frame(ingest, "wrist", 34 * MS)
    assert ingest.observe(38 * MS).stamp_ns == 34 * MS
