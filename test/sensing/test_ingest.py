"""From serialized messages to an observation, and what is said when there is none."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.sensing.arrivals import PROFILED_HINT
from vla_accel_ros.sensing.ingest import Ingest

S = 1_000_000_000
NOW = 50 * S


def image(stamp_ns: int, value: int = 0) -> bytes:
    message = Image(height=4, width=6, encoding="rgb8", step=18, data=bytes([value]) * 72)
    set_stamp(message.header.stamp, stamp_ns)
    return serialize_message(message)


def compressed(stamp_ns: int, pixels: np.ndarray) -> bytes:
    _, coded = cv2.imencode(".png", pixels[..., ::-1])
    message = CompressedImage(format="rgb8; png compressed bgr8", data=coded.tobytes())
    set_stamp(message.header.stamp, stamp_ns)
    return serialize_message(message)


def make_ingest(contract) -> Ingest:
    ingest = Ingest(contract)
    ingest.instruction = "reach the red block"
    return ingest


def fill(ingest: Ingest, contract, stamp_ns: int, now_ns: int) -> None:
    names = contract.joint_names
    ingest.joints(names, [0.1] * 6, stamp_ns - S // 100, now_ns)
    ingest.joints(names, [0.3] * 6, stamp_ns + S // 100, now_ns)
    for value, camera in enumerate(contract.cameras):
        ingest.image(camera.name, image(stamp_ns, 100 + value), now_ns)


def test_an_observation_has_the_cameras_by_the_policys_names_and_the_joints_at_their_stamp(contract):
    ingest = make_ingest(contract)
    fill(ingest, contract, NOW, NOW + S // 50)
    observation = ingest.observe(NOW + S // 50)
    assert observation.stamp_ns == NOW and observation.instruction == "reach the red block"
    assert {name: int(pixels[0, 0, 0]) for name, pixels in observation.images.items()} == {
        "base_0_rgb": 100,
        "left_wrist_0_rgb": 101,
    }
    np.testing.assert_allclose(observation.state, contract.to_policy(np.full(6, 0.2)), rtol=1e-6)
    assert ingest.observe(NOW + S // 50) is None and ingest.waiting_for == ""


def test_what_an_observation_waits_for_is_said(contract):
    ingest = Ingest(contract)
    assert ingest.observe(NOW) is None
    assert "publish one on the instruction topic" in ingest.waiting_for
    ingest.instruction = "reach the red block"
    ingest.image("front", image(NOW), NOW)
    ingest.observe(NOW)
    assert ingest.waiting_for == "no frame of camera wrist yet"


def test_a_camera_that_fell_silent_is_named(contract):
    ingest = make_ingest(contract)
    fill(ingest, contract, NOW, NOW)
    assert ingest.observe(NOW) is not None
    for k in range(1, 20):
        ingest.observed()
        ingest.image("front", image(NOW + k * S // 30), NOW + k * S // 30)
        ingest.observe(NOW + k * S // 30)
    assert "behind camera front" in ingest.waiting_for


def test_when_all_cameras_fell_silent_that_is_said(contract):
    ingest = make_ingest(contract)
    fill(ingest, contract, NOW, NOW)
    assert ingest.observe(NOW) is not None
    ingest.observe(NOW + S // 10)
    assert ingest.waiting_for == ""
    ingest.observe(NOW + S)
    assert "no new frame" in ingest.waiting_for


def test_the_newest_joints_are_in_the_policys_units(contract):
    ingest = make_ingest(contract)
    assert ingest.newest_state() is None
    fill(ingest, contract, NOW, NOW)
    newest = ingest.newest_state()
    assert newest is not None
    state, stamp_ns = newest
    np.testing.assert_allclose(state, contract.to_policy(np.full(6, 0.3)), rtol=1e-6)
    assert stamp_ns == NOW + S // 100


def test_a_message_that_cannot_be_used_is_refused_and_counted(contract):
    ingest = make_ingest(contract)
    with pytest.raises(ValueError, match="camera front: image message ends in"):
        ingest.image("front", image(NOW)[:40], NOW)
    with pytest.raises(ValueError, match="2 names and 1 positions"):
        ingest.joints(["a", "b"], [0.0], NOW, NOW)
    assert ingest.refused == {"front": 1, "joint_states": 1}


def test_a_compressed_image_is_an_image(contract):
    ingest = make_ingest(contract)
    fill(ingest, contract, NOW, NOW)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
    for camera in contract.cameras:
        ingest.compressed(camera.name, compressed(NOW + 1, pixels), NOW)
    observation = ingest.observe(NOW)
    assert observation.stamp_ns == NOW + 1 and observation.intact()
    np.testing.assert_array_equal(observation.images["left_wrist_0_rgb"], pixels)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda message: message[:30], "camera front: compressed image message ends in"),
        (lambda message: message[:-9] + bytes(9), "camera front: compressed image of 8 x 10 is damaged"),
        (lambda message: image(NOW), "camera front: compressed image"),
    ],
)
def test_a_compressed_image_that_cannot_be_decoded_is_refused_and_counted(contract, damage, sentence):
    ingest = make_ingest(contract)
    message = compressed(NOW, np.zeros((8, 10, 3), np.uint8))
    with pytest.raises(ValueError, match=sentence):
        ingest.compressed("front", damage(message), NOW)
    assert ingest.refused["front"] == 1 and ingest.monitors["front"].age_s(NOW) is None


def test_a_frame_without_a_free_slot_is_lost_and_counted(contract):
    ingest = make_ingest(contract)
    leases = []
    for k in range(6):
        ingest.image("front", image(NOW + k), NOW)
        leases.append(ingest._frames.newest("front"))
    assert ingest.lost("front") == 2
    for lease in leases:
        lease.release()


def test_camera_info_of_another_size_is_told_when_there_is_an_image(contract):
    ingest = make_ingest(contract)
    assert ingest.mismatch("front") == ""
    ingest.info("front", 480, 640)
    assert ingest.mismatch("front") == ""
    ingest.image("front", image(NOW), NOW)
    sentence = "camera front: images are 4 x 6, its camera_info is of 480 x 640: calibrate the camera"
    assert sentence in ingest.mismatch("front") and ingest.mismatch("wrist") == ""
    ingest.info("front", 4, 6)
    assert ingest.mismatch("front") == ""


def test_a_slow_ring_is_blamed_on_its_writer_and_not_on_the_transport(contract):
    cameras = tuple(replace(camera, transport="ring") for camera in contract.cameras)
    ingest = make_ingest(replace(contract, cameras=cameras))
    monitor = ingest.monitors["front"]
    for k in range(4):
        monitor.seen(NOW + k * S, NOW + k * S)
    warning = monitor.warning(NOW + 3 * S)
    assert warning is not None and "the node that writes the ring" in warning


def test_a_starving_camera_is_warned_of_with_the_mend(contract):
    ingest = make_ingest(contract)
    for k in range(10):
        ingest.image("front", image(NOW + k * S), NOW + k * S)
    warning = ingest.monitors["front"].warning(NOW + 9 * S)
    assert warning is not None
    assert "1.0 Hz instead of 30 Hz" in warning and "config/fastdds.xml" in warning
    assert ingest.monitors["front"].drops == 9 * 29


def test_where_the_profile_is_there_it_is_not_the_mend(contract):
    ingest = Ingest(contract, PROFILED_HINT)
    for k in range(10):
        ingest.image("front", image(NOW + k * S), NOW + k * S)
    warning = ingest.problem("front", NOW + 9 * S)
    assert "1.0 Hz instead of 30 Hz: look at its driver's rate" in warning and "Fast DDS" not in warning


def test_the_newest_usable_sample_of_every_stream_is_told_also_without_an_instruction(contract):
    ingest = Ingest(contract)
    assert ingest.stamps_ns() == {}
    ingest.joints(contract.joint_names[1:], [0.0] * 5, NOW, NOW)
    ingest.image("front", image(NOW), NOW)
    assert ingest.stamps_ns() == {"camera/front": NOW}
    ingest.joints(contract.joint_names[:1], [0.0], NOW - 7, NOW)
    with pytest.raises(ValueError, match="camera front"):
        ingest.image("front", b"", NOW + S)
    assert ingest.stamps_ns() == {"camera/front": NOW, "joint_states": NOW - 7}
    ingest.clear()
    assert ingest.stamps_ns() == {}


def test_why_a_message_was_refused_is_told_until_all_that_come_are_usable(contract):
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
    assert ingest.problem("joint_states", NOW + S // 2) == (
        f"joint state of {names[2]} is nan: mend its driver"
    )
    ingest.joints(names, [0.0] * 6, NOW + S, NOW + S)
    assert ingest.problem("joint_states", NOW + S) == ""


def test_the_joint_that_is_missing_or_fell_silent_alone_is_named(contract):
    ingest = Ingest(contract)
    names = contract.joint_names
    ingest.joints(names[:5], [0.0] * 5, NOW, NOW)
    assert ingest.problem("joint_states", NOW).startswith(f"no state of joint {names[5]} yet")
    ingest.joints(names[5:], [0.0], NOW, NOW)
    assert ingest.problem("joint_states", NOW) == ""
    for k in range(1, 300):
        ingest.joints(names[:5], [0.0] * 5, NOW + k * S // 100, NOW + k * S // 100)
    told = ingest.problem("joint_states", NOW + 3 * S)
    assert told.startswith(f"no state of joint {names[5]} for 3.00 s, while others come")
    assert ingest.problem("joint_states", NOW + 30 * S).startswith("joint_states has sent nothing on joint_")


def test_after_clear_only_new_frames_count_and_the_instruction_stays(contract):
    ingest = make_ingest(contract)
    fill(ingest, contract, NOW, NOW)
    ingest.clear()
    assert ingest.observe(NOW) is None
    fill(ingest, contract, NOW - 20 * S, NOW - 20 * S)  # the clock was set back
    assert ingest.observe(NOW - 20 * S).stamp_ns == NOW - 20 * S


def test_every_transport_tells_of_its_frames(contract):
    """The second camera's frame completes a set, and a refused one does not."""
    raw, coded = contract.cameras
    ingest = make_ingest(replace(contract, cameras=(raw, replace(coded, transport="compressed"))))
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


def test_an_observation_takes_each_joint_by_its_own_stamp_and_a_turning_one_the_short_way(contract):
    """An arm's driver, and a node that repeats it with the gripper, 3 ms later."""
    *others, last = contract.joints
    turning = replace(contract, joints=(replace(others[0], continuous=True), *others[1:], last))
    ingest, names = make_ingest(turning), contract.joint_names

    def angle(stamp_ns: int) -> float:
        return float(np.angle(np.exp(1j * (3.1 + (stamp_ns - NOW) / S))))

    for k in range(-50, 50):
        now_ns = NOW + 2 * k * S // 1000
        ingest.joints(names[:5], [angle(now_ns), 0, 0, 0, 0], now_ns, now_ns)
        if k % 10 == 0:
            stamp_ns = now_ns - 3 * S // 1000
            ingest.joints(names, [angle(stamp_ns), 0, 0, 0, 0, k * 2e-3], stamp_ns, now_ns)
    taken_ns = NOW + 41_500_000  # between two states, of which one is above and one is below pi
    for camera in contract.cameras:
        ingest.image(camera.name, image(taken_ns), NOW + S // 10)
    observation = ingest.observe(NOW + S // 10)
    assert observation is not None, ingest.waiting_for
    joints = turning.to_robot(observation.state)
    assert np.exp(1j * joints[0]) == pytest.approx(np.exp(1j * 3.1415), abs=1e-6)
    assert joints[5] == pytest.approx(0.0445, abs=1e-4)


@pytest.mark.parametrize(("stamp_ns", "fact"), [(0, "no stamp"), (NOW + 9 * S, "in the future")])
def test_why_there_is_no_observation_names_the_joint_that_is_stamped_wrongly(contract, stamp_ns, fact):
    ingest, names = make_ingest(contract), contract.joint_names
    fill(ingest, contract, NOW, NOW)
    ingest.clear()
    for camera in contract.cameras:
        ingest.image(camera.name, image(NOW), NOW)
    ingest.joints(names[:5], [0.0] * 5, NOW, NOW)
    ingest.joints(names, [0.0] * 6, stamp_ns, NOW)
    assert ingest.observe(NOW) is None
    for said in (ingest.waiting_for, ingest.problem("joint_states", NOW)):
        assert f"joint {names[5]} " in said and fact in said and names[0] not in said
