"""From messages to an observation, which is one instant of the robot, or to what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image
from streams import MS, SIM_ARM, TASK, Robot, S, make_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.sensing.arrivals import PROFILED_HINT
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.ingest import NO_INSTRUCTION, Ingest
from vla_accel_ros.types import Observation

NOW = 50 * S


def image(stamp_ns: int) -> bytes:
    """As a driver's node serialises it."""
    message = Image(height=4, width=6, encoding="rgb8", step=18, data=bytes(72))
    set_stamp(message.header.stamp, stamp_ns)
    return serialize_message(message)


def compressed(stamp_ns: int, pixels: np.ndarray) -> bytes:
    _, coded = cv2.imencode(".png", pixels[..., ::-1])
    message = CompressedImage(format="rgb8; png compressed bgr8", data=coded.tobytes())
    set_stamp(message.header.stamp, stamp_ns)
    return serialize_message(message)


def make_ready() -> Robot:
    """Frames 4 ms apart, and joints around them."""
    robot = Robot(task=TASK)
    robot.joints(0, 10 * MS, 20 * MS)
    robot.frame("front", 4 * MS, value=1)
    robot.frame("wrist", 8 * MS, value=2)
    return robot


def why_not(robot: Robot, now_ns: int) -> str:
    assert robot.ingest.observe(now_ns) is None
    return robot.ingest.waiting_for


def test_observation_has_the_policys_names_and_the_joints_of_the_oldest_image():
    observation = make_ready().ingest.observe(30 * MS)
    assert isinstance(observation, Observation)
    assert {name: int(pixels.max()) for name, pixels in observation.images.items()} == {
        "base_0_rgb": 1,
        "left_wrist_0_rgb": 2,
    }
    assert observation.stamp_ns == 4 * MS and observation.instruction == TASK
    assert observation.state.dtype == np.float32
    np.testing.assert_allclose(observation.state, np.arange(6) * 0.1 + 0.004, rtol=1e-6)


def test_pictures_are_turned_and_cropped_as_the_contract_says():
    contract = make_contract()
    front, wrist = contract.cameras
    cameras = replace(front, rotation=180, crop=0.5), replace(wrist, rotation=90)
    robot = Robot(replace(contract, cameras=cameras), TASK)
    robot.joints(0, 10 * MS, 20 * MS)
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    for camera in ("front", "wrist"):
        robot.ingest.image(camera, bytes(image_message(4 * MS, camera, picture)), 4 * MS)
    observation = robot.ingest.observe(30 * MS)
    assert isinstance(observation, Observation)
    upside_down = picture[::-1, ::-1]
    np.testing.assert_array_equal(observation.images["base_0_rgb"], upside_down[2:6, 3:9])
    clockwise = picture.transpose(1, 0, 2)[:, ::-1]
    np.testing.assert_array_equal(observation.images["left_wrist_0_rgb"], clockwise)
    assert not robot.ingest.mismatch("front", 8, 12)  # the camera's own size


@pytest.mark.parametrize("rate_hz", [500, 1000, 4000, 10_000])
def test_joints_are_those_of_the_image_however_fast_their_driver_is(rate_hz: int):
    robot = Robot(task=TASK)
    assert robot.ingest.newest_state() is None
    robot.joints(*range(S, 2 * S, S // rate_hz))
    for camera in ("front", "wrist"):
        robot.frame(camera, 2 * S - 450 * MS)
    observation = robot.ingest.observe(2 * S)
    assert isinstance(observation, Observation)
    np.testing.assert_allclose(observation.state, np.arange(6) * 0.1 + 1.55, rtol=1e-6)
    newest = robot.ingest.newest_state()
    assert newest is not None and newest[1] == 2 * S - S // rate_hz


def test_state_is_in_the_policys_units(tmp_path: Path):
    path = tmp_path / "degrees.yaml"
    path.write_text(
        SIM_ARM.read_text().replace("name: shoulder_lift,", "name: shoulder_lift, unit: deg, sign: -1,")
    )
    robot = Robot(Contract.load(path), TASK)
    robot.ingest.joints(make_contract().joint_names, [0.0, np.pi / 2, 0.0, 0.0, 0.0, 0.0], 0, 0)
    robot.frame("front", 0)
    robot.frame("wrist", 0)
    newest, observation = robot.ingest.newest_state(), robot.ingest.observe(0)
    assert newest is not None and observation is not None
    for state in (newest[0], observation.state):
        np.testing.assert_allclose(state, [0, -90, 0, 0, 0, 0])


def test_joint_is_taken_by_its_own_stamp_and_a_turning_one_the_short_way(contract):
    """An arm's driver, and a node that repeats it with the gripper, 3 ms later."""
    *further, last = contract.joints
    turning = replace(contract, joints=(replace(further[0], continuous=True), *further[1:], last))
    ingest, names = Robot(turning, TASK).ingest, contract.joint_names

    def angle(stamp_ns: int) -> float:
        return float(np.angle(np.exp(1j * (3.1 + (stamp_ns - NOW) / S))))

    for k in range(-50, 50):
        now_ns = NOW + 2 * k * MS
        ingest.joints(names[:5], [angle(now_ns), 0, 0, 0, 0], now_ns, now_ns)
        if k % 10 == 0:
            stamp_ns = now_ns - 3 * MS
            ingest.joints(names, [angle(stamp_ns), 0, 0, 0, 0, k * 2e-3], stamp_ns, now_ns)
    taken_ns = NOW + 41_500_000  # between two states, of which one is above and one is below pi
    for camera in contract.cameras:
        ingest.image(camera.name, image(taken_ns), NOW + S // 10)
    observation = ingest.observe(NOW + S // 10)
    assert observation is not None, ingest.waiting_for
    joints = turning.to_robot(observation.state)
    assert np.exp(1j * joints[0]) == pytest.approx(np.exp(1j * 3.1415), abs=1e-6)
    assert joints[5] == pytest.approx(0.0445, abs=1e-4)


def test_same_frames_are_nothing_new_until_they_are_too_old():
    robot = make_ready()
    assert robot.ingest.observe(30 * MS) is not None
    assert why_not(robot, 31 * MS) == ""
    robot.frame("front", 37 * MS)
    robot.joints(40 * MS)
    assert isinstance(robot.ingest.observe(50 * MS), Observation)
    assert why_not(robot, 50 * MS) == ""
    assert "no new frame" in why_not(robot, S)


def test_observation_keeps_its_pixels_until_the_next_one_or_until_it_was_observed():
    robot = make_ready()
    first = robot.ingest.observe(30 * MS)
    robot.ingest.instruct("", NO_INSTRUCTION)
    for t in range(40, 80):
        robot.frame("front", t * MS, value=t)
        assert why_not(robot, t * MS)
        assert (first.images["base_0_rgb"] == 1).all()
    robot.ingest.instruct(TASK, "")
    robot.frame("wrist", 80 * MS)
    robot.joints(80 * MS)
    image = robot.ingest.observe(80 * MS).images["base_0_rgb"]
    assert (image == 79).all() and robot.ingest.lost("front") == 0
    robot.ingest.observed()
    robot.ingest.observed()
    for t in range(81, 85):
        robot.frame("front", t * MS, value=t)
    assert (image != 79).all(), "another frame lies there"


def test_what_is_missing_is_named_until_it_arrives():
    robot = Robot()
    assert "publish one on the instruction topic" in why_not(robot, 0)
    robot.ingest.instruct(TASK, "")
    assert why_not(robot, 0) == "no frame of camera front, wrist yet"
    robot.frame("front", 0)
    assert why_not(robot, 0) == "no frame of camera wrist yet"
    robot.frame("wrist", 70 * MS)
    assert "camera front is 0.070 s behind camera wrist" in why_not(robot, 70 * MS)
    robot.frame("front", 66 * MS)
    assert why_not(robot, 70 * MS).startswith("no state of joint shoulder_pan, shoulder_lift")
    robot.joints(70 * MS)
    assert isinstance(robot.ingest.observe(70 * MS), Observation)


def test_stale_frames_and_far_joints_are_no_observation():
    robot = make_ready()
    assert why_not(robot, 510 * MS) == "camera front is 0.506 s old, max_age_s allows 0.5"
    robot.ingest._joints.clear()
    robot.joints(700 * MS)
    assert why_not(robot, 300 * MS) == "joint states are 0.696 s from the image, max_age_s allows 0.5"
    robot.joints(910 * MS)
    robot.frame("front", 910 * MS)
    robot.frame("wrist", 910 * MS)
    assert isinstance(robot.ingest.observe(920 * MS), Observation)


@pytest.mark.parametrize(("stamp_ns", "fact"), [(0, "no stamp"), (NOW + 2 * S, "2.000 s in the future")])
def test_camera_without_stamps_or_with_those_of_another_clock_is_named(stamp_ns, fact):
    robot = Robot(task=TASK)
    robot.frame("front", stamp_ns, now_ns=NOW)
    robot.frame("wrist", NOW)
    robot.joints(NOW)
    for words in (why_not(robot, NOW), robot.ingest.problem("front", NOW)):
        assert "camera front" in words and fact in words
    robot.frame("front", NOW)
    assert isinstance(robot.ingest.observe(NOW), Observation)
    assert "stamp" not in robot.ingest.problem("front", NOW)


@pytest.mark.parametrize(("stamp_ns", "fact"), [(0, "no stamp"), (NOW + 9 * S, "in the future")])
def test_joint_that_is_stamped_wrongly_is_named(contract, stamp_ns, fact):
    robot, names = Robot(task=TASK), contract.joint_names
    robot.frame("front", NOW)
    robot.frame("wrist", NOW)
    robot.ingest.joints(names[:5], [0.0] * 5, NOW, NOW)
    robot.ingest.joints(names, [0.0] * 6, stamp_ns, NOW)
    for words in (why_not(robot, NOW), robot.ingest.problem("joint_states", NOW)):
        assert f"joint {names[5]} " in words and fact in words and names[0] not in words


def test_frames_that_arrive_after_newer_ones_are_no_observation_and_after_a_jump_they_are():
    robot = make_ready()
    robot.joints(30 * MS, 40 * MS)
    for camera in ("front", "wrist"):
        robot.frame(camera, 34 * MS)
    assert robot.ingest.observe(40 * MS).stamp_ns == 34 * MS
    for camera in ("front", "wrist"):
        robot.frame(camera, 20 * MS)
    assert "older than those of the last observation" in why_not(robot, 41 * MS)
    robot.ingest.clear()
    assert robot.ingest.stamps_ns() == {} and "no frame" in why_not(robot, 41 * MS)
    robot.joints(20 * MS)
    for camera in ("front", "wrist"):
        robot.frame(camera, 20 * MS)
    observation = robot.ingest.observe(41 * MS)
    assert observation.stamp_ns == 20 * MS and observation.instruction == TASK


def test_one_camera_may_come_first_but_none_goes_back():
    robot = make_ready()
    robot.joints(30 * MS, 40 * MS)
    robot.frame("front", 4 * MS)
    robot.frame("wrist", 4 * MS)
    assert robot.ingest.observe(30 * MS).stamp_ns == 4 * MS
    robot.frame("front", 34 * MS)
    assert robot.ingest.observe(36 * MS).stamp_ns == 4 * MS
    robot.frame("front", 14 * MS)  # delivered late, while the other camera still shows its first frame
    assert why_not(robot, 37 * MS)
    robot.frame("front", 34 * MS)
    robot.frame("wrist", 34 * MS)
    assert robot.ingest.observe(38 * MS).stamp_ns == 34 * MS


def test_message_that_cannot_be_used_is_refused_and_counted(contract):
    ingest = Robot(task=TASK).ingest
    with pytest.raises(ValueError, match="camera front"):
        ingest.image("front", image(NOW)[:40], NOW)
    with pytest.raises(ValueError, match="2 names and 1 positions"):
        ingest.joints(["a", "b"], [0.0], NOW, NOW)
    assert ingest.refused == {"front": 1, "joint_states": 1}


def test_compressed_image_is_an_image_unless_it_is_damaged(contract):
    ingest, pixels = Robot(task=TASK).ingest, np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
    message = compressed(NOW, pixels)
    for damaged in (message[:30], message[:-9] + bytes(9), image(NOW)):
        with pytest.raises(ValueError, match="camera front: compressed image"):
            ingest.compressed("front", damaged, NOW)
    assert ingest.refused["front"] == 3 and ingest.monitors["front"].age_s(NOW) is None
    ingest.joints(contract.joint_names, [0.0] * 6, NOW, NOW)
    for camera in contract.cameras:
        ingest.compressed(camera.name, message, NOW)
    observation = ingest.observe(NOW)
    assert observation.stamp_ns == NOW and observation.intact()
    np.testing.assert_array_equal(observation.images["left_wrist_0_rgb"], pixels)


def test_camera_info_of_another_size_is_named_when_there_is_an_image(contract):
    robot = Robot()
    assert robot.ingest.mismatch("front", 480, 640) == ""
    robot.frame("front", NOW)
    mismatch = robot.ingest.mismatch("front", 480, 640)
    assert "4 x 6" in mismatch and "480 x 640" in mismatch
    assert robot.ingest.mismatch("wrist", 480, 640) == "" == robot.ingest.mismatch("front", 4, 6)


def test_starving_camera_is_reported_with_what_its_transport_needs(contract):
    cameras = tuple(replace(camera, transport="ring") for camera in contract.cameras)
    in_rings = replace(contract, cameras=cameras)
    for ingest, hint in (
        (Ingest(contract), "config/fastdds.xml"),
        (Ingest(contract, PROFILED_HINT), "its driver's rate"),
        (Ingest(in_rings), "the node that writes the ring"),
    ):
        monitor = ingest.monitors["front"]
        for k in range(10):
            monitor.seen(NOW + k * S, NOW + k * S)
        warning = monitor.warning(NOW + 9 * S)
        assert warning is not None and "1.0 Hz instead of 30 Hz" in warning and hint in warning
        assert monitor.drops == 9 * 29


def test_stamps_are_those_of_the_newest_usable_samples_also_without_an_instruction(contract):
    ingest = Ingest(contract)
    assert ingest.stamps_ns() == {}
    ingest.joints(contract.joint_names[1:], [0.0] * 5, NOW, NOW)
    ingest.image("front", image(NOW), NOW)
    assert ingest.stamps_ns() == {"camera/front": NOW}
    ingest.joints(contract.joint_names[:1], [0.0], NOW - 7, NOW)
    with pytest.raises(ValueError, match="camera front"):
        ingest.image("front", b"", NOW + S)
    assert ingest.stamps_ns() == {"camera/front": NOW, "joint_states": NOW - 7}


def test_problem_is_why_a_message_was_refused_until_all_that_come_are_usable(contract):
    ingest = Ingest(contract)
    with pytest.raises(ValueError, match="camera front"):
        ingest.image("front", b"", NOW)
    assert ingest.problem("front", NOW).startswith("camera front: ")
    assert ingest.problem("front", NOW + 9 * S).startswith("camera front: ")
    assert ingest.problem("wrist", NOW) == ""
    names, bad = contract.joint_names, [0.0, 0.0, float("nan"), 0.0, 0.0, 0.0]
    with pytest.raises(ValueError):
        ingest.joints(names, bad, NOW, NOW)
    ingest.joints(names[:3], [0.0] * 3, NOW + S // 2, NOW + S // 2)
    problem = ingest.problem("joint_states", NOW + S // 2)
    assert names[2] in problem and "nan" in problem
    ingest.joints(names, [0.0] * 6, NOW + S, NOW + S)
    assert ingest.problem("joint_states", NOW + S) == ""


def test_problem_names_the_joint_that_is_missing_or_fell_silent_alone(contract):
    ingest = Ingest(contract)
    names = contract.joint_names
    ingest.joints(names[:5], [0.0] * 5, NOW, NOW)
    assert ingest.problem("joint_states", NOW).startswith(f"no state of joint {names[5]} yet")
    ingest.joints(names[5:], [0.0], NOW, NOW)
    assert ingest.problem("joint_states", NOW) == ""
    for k in range(1, 300):
        ingest.joints(names[:5], [0.0] * 5, NOW + k * S // 100, NOW + k * S // 100)
    problem = ingest.problem("joint_states", NOW + 3 * S)
    assert problem.startswith(f"no state of joint {names[5]} for 3.00 s")
    assert ingest.problem("joint_states", NOW + 30 * S).startswith("joint_states has sent nothing on joint_")


def test_every_transport_adds_its_frames_to_a_set(contract):
    """The second camera's frame completes a set, and a refused one does not."""
    raw, coded = contract.cameras
    ingest = Ingest(replace(contract, cameras=(raw, replace(coded, transport="compressed"))))
    pixels = np.zeros((4, 6, 3), np.uint8)
    for k in range(4):
        ingest.image(raw.name, image(NOW + k * S // 30), NOW)
        with pytest.raises(ValueError, match=f"camera {coded.name}"):
            ingest.compressed(coded.name, b"", NOW)
        assert ingest.sets.count == k
        ingest.compressed(coded.name, compressed(NOW + k * S // 30, pixels), NOW)
        assert ingest.sets.count == k + 1
    ingest.clear()
    assert not ingest.sets.wait(0.0)
