"""Requests of openpi's clients, answered by an engine: the same actions as its own, and wrong keys named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import JOINTS, make_policy
from PIL import Image

from vla_accel_ros.contract.sections.keys import PRESETS, keys_of
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.answering import Answering
from vla_accel_ros.wire.arrays import unpack
from vla_accel_ros.wire.keys import images_in, prompt_in, state_in

RECORDED = Path(__file__).resolve().parents[1] / "data" / "openpi_wire"
NAMES = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.integers(0, 255, (28, 28, 3), dtype=np.uint8)
STATE = RANDOM.normal(size=JOINTS)
NOISE = RANDOM.normal(size=(8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(make_policy(), steps=3)


def request(**changes: object) -> dict[str, object]:
    return {"images": {"base_0_rgb": PICTURE}, "state": STATE, "prompt": "reach the block", **changes}


def native(engine: Engine) -> Answering:
    return Answering(engine, keys_of("native", engine.policy.config.image_names))


def test_actions_are_the_engine_own_to_the_bit(engine):
    answer = native(engine).answer(request(noise=NOISE))
    observation = Observation({"base_0_rgb": PICTURE}, STATE.astype(np.float32), "reach the block", 0)
    with engine.observe(observation) as prefix:
        expected = engine.act(prefix, noise=NOISE).actions
    assert np.array_equal(answer["actions"], expected) and answer["policy_timing"]["infer_ms"] > 0


@pytest.mark.parametrize("picture", ["channels first", "float", "png"])
def test_each_form_of_a_picture_gives_the_same_actions(engine, picture):
    stream = BytesIO()
    Image.fromarray(PICTURE).save(stream, "png")
    forms = {
        "channels first": PICTURE.transpose(2, 0, 1),
        "float": (PICTURE / 255 + 1e-6).clip(0, 1),
        "png": stream.getvalue(),
    }
    answers = [
        native(engine).answer(request(images={"base_0_rgb": form}, noise=NOISE))["actions"]
        for form in (PICTURE, forms[picture])
    ]
    assert np.array_equal(*answers)


def test_real_time_chunking_begins_with_what_is_executed(engine):
    first = native(engine).answer(request(noise=NOISE))["actions"]
    other = np.roll(NOISE, 1)
    free = native(engine).answer(request(noise=other))["actions"]
    guided = native(engine).answer(request(noise=other, action_prefix=first[2:], delay=2))["actions"]
    distance = [np.abs(actions[:2] - first[2:4]).max() for actions in (free, guided)]
    assert distance[1] < 0.2 * distance[0]


WRONG: dict[str, dict[str, Any]] = {
    "images['base_0_rgb']": {"images": {"front": PICTURE}},
    "prompt": {"prompt": None},
    "state": {"state": None},
    "not finite": {"state": np.full(JOINTS, np.nan)},
    "no numbers": {"state": ["a"]},
    "noise": {"noise": np.zeros(3)},
    "action_prefix": {"action_prefix": np.zeros((2, 3)), "delay": 1},
    "delay": {"action_prefix": np.zeros((2, JOINTS)), "delay": 3},
    "int64": {"images": {"base_0_rgb": PICTURE.astype(np.int64)}},
    "outside of 0 to 1": {"images": {"base_0_rgb": PICTURE.astype(np.float32)}},
    "[4, 4, 4]": {"images": {"base_0_rgb": np.zeros((4, 4, 4), np.uint8)}},
    "neither jpeg nor png": {"images": {"base_0_rgb": b"GIF89a" + bytes(40)}},
}


@pytest.mark.parametrize("fact", WRONG)
def test_a_wrong_request_is_refused_by_name(engine, fact):
    with pytest.raises(ValueError) as error:
        native(engine).answer(request(**WRONG[fact]))
    assert fact in str(error.value)


def test_the_recorded_droid_request_is_read_by_its_keys():
    message = unpack((RECORDED / "openpi_c2s_1_binary.bin").read_bytes())
    keys = keys_of("openpi-droid", NAMES)
    pictures = images_in(message, keys, NAMES)
    assert list(pictures) == list(NAMES[:2])
    assert np.array_equal(pictures["base_0_rgb"], message["observation/exterior_image_1_left"])
    parts = [np.ravel(message[f"observation/{name}_position"]) for name in ("joint", "gripper")]
    assert np.array_equal(state_in(message, keys), np.concatenate(parts).astype(np.float32))
    assert prompt_in(message, keys, "") == message["prompt"]


def test_aloha_may_lack_wrist_cameras_and_libero_may_not():
    aloha = {"images": {"cam_high": PICTURE.transpose(2, 0, 1), "cam_left_wrist": PICTURE}}
    assert list(images_in(aloha, keys_of("openpi-aloha", NAMES), NAMES)) == list(NAMES[:2])
    with pytest.raises(ValueError, match="observation/wrist_image"):
        images_in({"observation/image": PICTURE}, keys_of("openpi-libero", NAMES), NAMES)


def test_unknown_keys_and_a_policy_with_too_few_pictures_are_refused(engine):
    with pytest.raises(ValueError, match="'droid'"):
        keys_of("droid", NAMES)
    with pytest.raises(ValueError, match="cam_right_wrist"):
        Answering(engine, PRESETS["openpi-aloha"])


def test_many_clients_at_once_get_the_actions_that_each_gets_alone():
    engine = Engine(make_policy(), steps=3, slots=10)
    answering, noises = native(engine), [np.roll(NOISE, number) for number in range(8)]
    alone = [answering.answer(request(noise=noise))["actions"] for noise in noises]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda noise: answering.answer(request(noise=noise))["actions"], noises))
    assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))
