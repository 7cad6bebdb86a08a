"""An observation is one instant of the robot, or a sentence that says what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streams import MS, SIM_ARM, S, make_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.frames import FramePool
from vla_accel_ros.sensing.sync import NOTHING_NEW, NotReady, Synchroniser
from vla_accel_ros.types import Observation

TASK = "reach the red block"


def make_synchroniser(contract: Contract | None = None) -> Synchroniser:
    return Synchroniser(contract or make_contract(), FramePool(("front", "wrist"), page_lock=False))


def add_frame(sync: Synchroniser, camera: str, stamp_ns: int, value: int = 0) -> None:
    with sync.frames.write(camera, stamp_ns, 4, 5) as slot:
        slot[:] = value


def add_joints(sync: Synchroniser, *stamps_ns: int) -> None:
    for stamp_ns in stamps_ns:
        sync.joints.add(sync.contract.joint_names, np.arange(6) * 0.1 + stamp_ns / S, stamp_ns)


def make_ready() -> Synchroniser:
    sync = make_synchroniser()
    add_joints(sync, 0, 10 * MS, 20 * MS)
    add_frame(sync, "front", 4 * MS, value=1)
    add_frame(sync, "wrist", 8 * MS, value=2)
    return sync


def test_images_have_the_policys_names_and_the_joints_are_those_of_the_oldest_image():
    observation = make_ready().observe(TASK, 30 * MS)
    assert isinstance(observation, Observation)
    assert sorted(observation.images) == ["base_0_rgb", "left_wrist_0_rgb"]
    assert (observation.images["base_0_rgb"] == 1).all() and (
        observation.images["left_wrist_0_rgb"] == 2
    ).all()
    assert observation.stamp_ns == 4 * MS and observation.instruction == TASK
    assert observation.state.dtype == np.float32
    np.testing.assert_allclose(observation.state, np.arange(6) * 0.1 + 0.004, rtol=1e-6)


def test_the_state_is_in_the_policys_units(tmp_path: Path):
    path = tmp_path / "degrees.yaml"
    path.write_text(
        SIM_ARM.read_text().replace("name: shoulder_lift,", "name: shoulder_lift, unit: deg, sign: -1,")
    )
    sync = make_synchroniser(Contract.load(path))
    sync.joints.add(sync.contract.joint_names, [0.0, np.pi / 2, 0.0, 0.0, 0.0, 0.0], 0)
    add_frame(sync, "front", 0)
    add_frame(sync, "wrist", 0)
    np.testing.assert_allclose(sync.observe(TASK, 0).state, [0, -90, 0, 0, 0, 0])


def test_the_same_frames_are_nothing_new():
    sync = make_ready()
    sync.observe(TASK, 30 * MS)
    assert sync.observe(TASK, 31 * MS) is NOTHING_NEW
    add_frame(sync, "front", 37 * MS)
    add_joints(sync, 40 * MS)
    assert isinstance(sync.observe(TASK, 50 * MS), Observation)
    assert sync.observe(TASK, 50 * MS) is NOTHING_NEW


def test_an_observation_keeps_its_pixels_until_the_next_one():
    sync = make_ready()
    first = sync.observe(TASK, 30 * MS)
    for t in range(40, 80):
        add_frame(sync, "front", t * MS, value=t)
        assert sync.observe("", t * MS) != NOTHING_NEW
        assert (first.images["base_0_rgb"] == 1).all()
    add_frame(sync, "wrist", 80 * MS)
    add_joints(sync, 80 * MS)
    second = sync.observe(TASK, 80 * MS)
    assert (second.images["base_0_rgb"] == 79).all()
    assert sync.frames.dropped("front") == 0


def test_release_gives_the_slots_back():
    sync = Synchroniser(make_contract(), FramePool(("front", "wrist"), slots=2, page_lock=False))
    add_joints(sync, 0)
    add_frame(sync, "front", 0)
    add_frame(sync, "wrist", 0)
    sync.observe(TASK, 0)
    sync.release()
    sync.release()
    for t in range(5):
        add_frame(sync, "front", t * MS)
    assert sync.frames.dropped("front") == 0


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_without_an_instruction_it_does_nothing(blank):
    assert "no instruction yet: publish one" in make_ready().observe(blank, 30 * MS).reason


def test_what_is_missing_is_said_and_mended_by_its_arrival():
    sync = make_synchroniser()
    assert sync.observe(TASK, 0) == NotReady("no frame of camera front, wrist yet")
    add_frame(sync, "front", 0)
    assert sync.observe(TASK, 0) == NotReady("no frame of camera wrist yet")
    add_frame(sync, "wrist", 70 * MS)
    assert "camera front is 0.070 s behind camera wrist" in sync.observe(TASK, 70 * MS).reason
    add_frame(sync, "front", 66 * MS)
    assert sync.observe(TASK, 70 * MS).reason.startswith("no state of joint shoulder_pan, shoulder_lift")
    add_joints(sync, 70 * MS)
    assert isinstance(sync.observe(TASK, 70 * MS), Observation)


def test_stale_frames_and_far_joints_are_no_observation():
    sync = make_ready()
    assert sync.observe(TASK, 510 * MS).reason == "camera front is 0.506 s old, max_age_s allows 0.5"
    sync.joints.clear()
    add_joints(sync, 900 * MS)
    assert (
        sync.observe(TASK, 300 * MS).reason == "joint states are 0.896 s from the image, max_age_s allows 0.5"
    )
    add_joints(sync, 910 * MS)
    add_frame(sync, "front", 910 * MS)
    add_frame(sync, "wrist", 910 * MS)
    assert isinstance(sync.observe(TASK, 920 * MS), Observation)


def test_frames_that_arrive_after_newer_ones_are_no_observation_and_after_a_jump_they_are():
    sync = make_ready()
    add_joints(sync, 30 * MS, 40 * MS)
    for camera in ("front", "wrist"):
        add_frame(sync, camera, 34 * MS)
    assert sync.observe(TASK, 40 * MS).stamp_ns == 34 * MS
    for camera in ("front", "wrist"):
        add_frame(sync, camera, 20 * MS)
    late = sync.observe(TASK, 41 * MS)
    assert isinstance(late, NotReady) and "older than those of the last observation" in late.reason
    sync.forget()
    assert sync.observe(TASK, 41 * MS).stamp_ns == 20 * MS


def test_one_camera_may_come_first_but_none_goes_back():
    sync = make_ready()
    add_joints(sync, 30 * MS, 40 * MS)
    add_frame(sync, "front", 4 * MS)
    add_frame(sync, "wrist", 4 * MS)
    assert sync.observe(TASK, 30 * MS).stamp_ns == 4 * MS
    add_frame(sync, "front", 34 * MS)
    assert sync.observe(TASK, 36 * MS).stamp_ns == 4 * MS
    add_frame(sync, "front", 14 * MS)  # delivered late, while the other camera still shows its first frame
    assert isinstance(sync.observe(TASK, 37 * MS), NotReady)
    add_frame(sync, "front", 34 * MS)
    add_frame(sync, "wrist", 34 * MS)
    assert sync.observe(TASK, 38 * MS).stamp_ns == 34 * MS
