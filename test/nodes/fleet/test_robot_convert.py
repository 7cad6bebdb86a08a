"""What a robot and a fleet's scheduler tell each other survives the way through messages, and what of it is
refused."""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message

from vla_accel_ros.fleet.protocol import (
    Admission,
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
)
from vla_accel_ros.nodes.fleet import fleet_convert as convert
from vla_accel_ros.types import Chunk

STAMP = 12_345_678_901
ROUND = Round("engine-1", "/left", 3, 17)
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
JPEG = bytes(cv2.imencode(".jpg", PIXELS)[1])


def over_the_wire(message):
    return deserialize_message(serialize_message(message), type(message))


def make_request(**changes) -> ChunkRequest:
    seen = EncodedObservation(
        images={"front": JPEG, "wrist": PIXELS},
        stamps_ns={"front": STAMP, "wrist": STAMP + 5_000_000},
        state=np.linspace(-1, 1, 6, dtype=np.float32),
        instruction="reach the red block",
        stamp_ns=STAMP,
    )
    return replace(ChunkRequest(ROUND, 2, STAMP + 30_000_000, seen, 0.2, 5, 0.75, 0.9, 100), **changes)


def make_chunk() -> Chunk:
    actions = np.arange(24, dtype=np.float32).reshape(4, 6) / 100
    return Chunk(actions, STAMP, 1 / 30, 7, 8, np.arange(4, dtype=np.float32), execution_horizon=3)


def make_answer(**changes) -> ChunkAnswer:
    answer = ChunkAnswer(ROUND, 2, "scheduler-1", STAMP + 30_000_000, make_chunk(), "", 0.0, 0.1, 0.2, "gpu0")
    return replace(answer, **changes)


def test_a_request_survives(contract):
    asked = make_request()
    back = convert.request_from_message(over_the_wire(convert.request_to_message(asked)), contract)
    seen = back.observation
    assert replace(back, observation=asked.observation) == asked
    assert seen.images["front"] == JPEG
    np.testing.assert_array_equal(seen.images["wrist"], PIXELS)
    np.testing.assert_array_equal(seen.state, asked.observation.state)
    assert (seen.stamps_ns, seen.instruction, seen.stamp_ns) == (
        {"front": STAMP, "wrist": STAMP + 5_000_000},
        "reach the red block",
        STAMP,
    )


def test_a_request_has_every_earlier_frame_or_none_and_is_as_old_as_the_newest(contract):
    front, wrist = contract.cameras
    contract = replace(contract, cameras=(replace(front, history=(("ago_1", 0.2), ("ago_2", 0.4))), wrist))
    asked = make_request()
    assert convert.request_from_message(convert.request_to_message(asked), contract).observation.images
    seen = asked.observation
    earlier: dict[str, bytes | np.ndarray] = {"ago_1": PIXELS // 2, "ago_2": JPEG}
    stamps_ns = {**seen.stamps_ns, "ago_1": STAMP - 200_000_000, "ago_2": STAMP - 400_000_000}
    seen = replace(seen, images={**seen.images, **earlier}, stamps_ns=stamps_ns)
    message = over_the_wire(convert.request_to_message(replace(asked, observation=seen)))
    back = convert.request_from_message(message, contract).observation
    assert (back.stamp_ns, back.stamps_ns) == (STAMP, stamps_ns) and back.images["ago_2"] == JPEG
    np.testing.assert_array_equal(back.images["ago_1"], PIXELS // 2)
    message.compressed = message.compressed[:1]
    with pytest.raises(ValueError, match="no image of camera 'ago_2'"):
        convert.request_from_message(message, contract)


def test_a_request_without_a_deadline_or_a_last_chunk_survives(contract):
    message = convert.request_to_message(make_request(within_s=math.inf, executed_s=-1.0, remaining=0))
    back = convert.request_from_message(over_the_wire(message), contract)
    assert (back.within_s, back.executed_s) == (math.inf, -1.0)


def test_pixels_that_another_sends_as_bgr_arrive_as_rgb(contract):
    message = convert.request_to_message(make_request())
    message.raw[0].encoding = "bgr8"
    back = convert.request_from_message(message, contract)
    np.testing.assert_array_equal(back.observation.images["wrist"], PIXELS[..., ::-1])


def _image_of(message, name):
    message.raw[0].header.frame_id = name


def _cut_short(message):
    message.compressed[0].data = message.compressed[0].data[:-20]


def _no_picture(message):
    message.raw[0].data = message.raw[0].data[:-1]


def _state(message, state):
    message.state = state


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda m: _image_of(m, "ceiling"), "image of camera 'ceiling': the contract has front, wrist"),
        (lambda m: _image_of(m, "front"), "two images of camera 'front'"),
        (lambda m: m.raw.clear(), "no image of camera 'wrist'"),
        (_cut_short, "camera front: .* without its end"),
        (_no_picture, "camera wrist: image has 2303 bytes of data"),
        (lambda m: setattr(m.raw[0], "height", 2**31), "camera wrist: image is 2147483648 x 32, more than"),
        (lambda m: setattr(m.raw[0], "encoding", "16UC1"), "camera wrist: image encoding '16UC1'"),
        (lambda m: setattr(m.stamp, "sec", 3), "these must be the same"),
        (lambda m: _state(m, [0.0] * 5), "a state of 5 numbers for 6 joints"),
        (lambda m: _state(m, [0.0] * 5 + [math.nan]), "nan for joint 'gripper'"),
        (lambda m: setattr(m, "instruction", " "), "an instruction of 1 letters"),
        (lambda m: setattr(m, "within_s", math.nan), "within_s nan"),
        (lambda m: setattr(m, "within_s", -1.0), "within_s -1"),
        (lambda m: setattr(m, "executed_s", math.inf), "executed_s inf"),
        (lambda m: setattr(m, "stalled_s", math.inf), "stalled_s inf"),
        (lambda m: setattr(m, "engine", ""), "0 letters for `engine`"),
        (lambda m: setattr(m, "robot", "left"), "names no robot"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_in_one_sentence(contract, spoil, sentence):
    message = convert.request_to_message(make_request())
    spoil(message)
    with pytest.raises(ValueError, match=sentence) as refusal:
        convert.request_from_message(message, contract)
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith("fleet/request 17 of ")


def test_a_chunk_survives_in_ros_units(contract):
    joints = (replace(contract.joints[0], unit="deg"), *contract.joints[1:])
    contract = replace(contract, joints=joints)
    answer = make_answer()
    back = convert.answer_from_message(over_the_wire(convert.answer_to_message(answer, contract)), contract)
    assert replace(back, chunk=None) == replace(answer, chunk=None)
    np.testing.assert_allclose(back.chunk.actions, contract.to_robot(answer.chunk.actions), rtol=1e-6)
    assert (back.chunk.stamp_ns, back.chunk.executed, back.chunk.step_dt_s) == (STAMP, 3, 1 / 30)


def test_a_refusal_survives(contract):
    answer = make_answer(chunk=None, refusal="the queue is full", retry_s=0.5)
    assert convert.answer_from_message(convert.answer_to_message(answer, contract), contract) == answer


def _names(message, *names):
    message.chunk.joint_names = list(names)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda m, n: _names(m, *n[:5], "lift"), "no joint 'gripper'"),
        (lambda m, n: m.chunk.actions.__setitem__(7, math.nan), "nan for joint 'shoulder_lift' in action 1"),
        (lambda m, n: setattr(m.chunk, "horizon", 5), "says 5 x 6 but has 24 numbers"),
        (lambda m, n: setattr(m.chunk, "horizon", 2**31), "send at most 256"),
        (lambda m, n: setattr(m.chunk, "step_dt_s", 0.05), "0.05 s steps, the contract's"),
        (lambda m, n: setattr(m, "refusal", "no"), "a chunk and a refusal"),
        (lambda m, n: setattr(m, "chunk", type(m.chunk)()), "no chunk and no refusal"),
        (lambda m, n: setattr(m, "retry_s", math.nan), "retry_s nan"),
        (lambda m, n: setattr(m, "served_s", -1.0), "served_s -1"),
        (lambda m, n: setattr(m, "scheduler", ""), "0 letters for `scheduler`"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_in_one_sentence(contract, spoil, sentence):
    message = convert.answer_to_message(make_answer(), contract)
    spoil(message, contract.action_names)
    with pytest.raises(ValueError, match=sentence):
        convert.answer_from_message(message, contract)


def test_a_chunk_with_joints_beside_the_contracts_is_refused(contract):
    fewer = replace(contract, joints=contract.joints[:5])
    message = convert.answer_to_message(make_answer(), contract)
    with pytest.raises(ValueError, match="a chunk for 'gripper' too"):
        convert.answer_from_message(message, fewer)


def test_a_description_an_admission_and_a_call_survive():
    robot = RobotDescription("engine-1", "/left", "robot: arm\n", "<robot/>", "so100", "confidence", 3, 2.5)
    told = over_the_wire(convert.description_to_message(robot, STAMP))
    assert convert.description_from_message(told) == robot
    assert (told.header.stamp.sec, told.header.stamp.nanosec) == (12, 345_678_901)
    admission = Admission("engine-1", "/left", "scheduler-1", False, "full: 12 of 12 robots", 0.0)
    assert convert.admission_from_message(convert.admission_to_message(admission)) == admission
    assert convert.call_from_message(convert.call_to_message(ROUND)) == ROUND


def test_who_is_nobody_and_what_has_no_reason_is_refused():
    robot = RobotDescription("engine-1", "/left", "robot: arm\n")
    admission = Admission("engine-1", "/left", "scheduler-1", False)
    with pytest.raises(ValueError, match="no contract"):
        convert.description_from_message(convert.description_to_message(replace(robot, contract=""), 0))
    for rate_hz in (math.inf, math.nan, -1.0, 1e-308, 5e-324):
        with pytest.raises(ValueError, match=f"chunks_per_s {rate_hz:g}"):
            rate = replace(robot, chunks_per_s=rate_hz)
            convert.description_from_message(convert.description_to_message(rate, 0))
    with pytest.raises(ValueError, match="without a reason"):
        convert.admission_from_message(convert.admission_to_message(admission))
    with pytest.raises(ValueError, match="names no robot"):
        convert.call_from_message(convert.call_to_message(replace(ROUND, robot="")))
