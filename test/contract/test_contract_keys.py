"""The section `keys` of a contract: presets of public servers, keys of one's own, and mistakes by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from good_contract import GOOD
from good_contract import load as load_plain
from hand_arms import load as load_hand
from hand_arms import text

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.sections.keys import NAMES, Keys, keys_of
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.asking import Asking
from vla_accel_ros.wire.keys import images_in, prompt_in, state_in, write

IMAGES = ("base_0_rgb", "left_wrist_0_rgb")
PICTURE = np.arange(224 * 224 * 3, dtype=np.uint8).reshape(224, 224, 3)
OWN = {
    "images": {"base_0_rgb": "cameras > 0 > rgb", "left_wrist_0_rgb": "cameras > 1 > rgb"},
    "state": {"arm > joints": 5, "arm > gripper": 1},
    "prompt": "task",
    "size": 64,
    "layout": "chw",
    "constants": {"sampling_params > num_inference_steps": 4, "advantage": True},
    "blank": ["cameras > 2 > rgb"],
}


def load(folder: Path, keys: Any) -> Keys:
    """The keys of the demo's contract with this section."""
    contract = yaml.safe_load(Path(demo_contract()).read_text())
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump({**contract, "keys": keys}, sort_keys=False))
    return Contract.load(path).keys


def test_a_contract_without_keys_has_native_ones():
    assert Contract.load(demo_contract()).keys == keys_of("native", IMAGES)


@pytest.mark.parametrize("preset", NAMES)
def test_each_preset_is_known_and_written_requests_are_read_again(tmp_path, preset):
    keys = load(tmp_path, {"preset": preset})
    assert keys == keys_of(preset, IMAGES)
    state = np.arange(14.0) if preset == "openpi-aloha" else np.arange(8.0)
    request = write(keys, dict.fromkeys(keys.images, PICTURE), state, "put it away")
    names = [f"picture_{number}" for number in range(3)] if keys.by_order else IMAGES
    assert len(images_in(request, keys, names)) == len(keys.images)
    assert np.array_equal(state_in(request, keys), state)
    assert prompt_in(request, keys, "") == "put it away"


def test_keys_of_one_own_say_where_each_part_is(tmp_path):
    request = write(load(tmp_path, OWN), dict.fromkeys(IMAGES, PICTURE), np.arange(6.0), "fold")
    cameras = request["cameras"]
    assert [entry["rgb"].shape for entry in cameras] == [(3, 64, 64)] * 3 and not cameras[2]["rgb"].any()
    assert request["arm"]["joints"].tolist() == [0, 1, 2, 3, 4] and request["arm"]["gripper"].tolist() == [5]
    assert request["task"] == "fold" and request["advantage"] is True
    assert request["sampling_params"] == {"num_inference_steps": 4}


def test_a_preset_takes_other_pictures_and_answers(tmp_path):
    pictures = {
        "base_0_rgb": "observation/exterior_image_1_left",
        "left_wrist_0_rgb": "observation/wrist_image_left",
    }
    keys = load(tmp_path, {"preset": "openpi-droid", "images": pictures, "answers": "joints"})
    assert keys.answers == "joints" and keys_of("openpi-droid", ()).answers == "velocities"
    request = write(keys, dict.fromkeys(IMAGES, PICTURE), np.arange(8.0), "go")
    assert request["observation/gripper_position"].tolist() == [7]
    assert request["observation/wrist_image_left"].shape == (224, 224, 3)


def test_a_state_that_is_off_is_not_sent(tmp_path):
    keys = load(tmp_path, {"preset": "starvla", "state": False, "constants": {"unnorm_key": "franka"}})
    assert write(keys, dict.fromkeys(IMAGES, PICTURE), np.arange(8.0), "go").keys() == {
        "image",
        "lang",
        "unnorm_key",
    }


def asked(contract: Contract, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """The request for the robot's observation, and the actions of the chunk that is made of the answer."""

    class Server:
        def infer(self, request: Any, deadline_s: float) -> np.ndarray:
            self.request = request
            return actions

    server = Server()
    images = {camera.image: PICTURE for camera in contract.cameras}
    state = contract.to_policy(np.linspace(0.1, 0.4, len(contract.joints))).astype(np.float32)
    chunk = Asking(contract, server, 0.0).chunk(Observation(images, state, "go", 0), lambda: 0)
    return server.request, np.asarray(chunk.actions)


def keys_text(preset: str, state: str, *images: str) -> str:
    """The section for a contract with these images."""
    paths = ", ".join(f"{image}: observation/{image}" for image in images)
    return f"keys: {{preset: {preset}, images: {{{paths}}}, state: {{{state}}}}}\n"


def test_libero_hand_passes_between_robot_and_server(tmp_path):
    finger = "acceleration: 2, unit: m, pair: true, action_map: {robot: [0.04, 0.0], policy: [-1, 1]}"
    plain = load_hand(tmp_path, text("preset: libero, ", finger))
    keys = keys_text("openpi-libero", "observation/state: 8", *(camera.image for camera in plain.cameras))
    contract = load_hand(tmp_path, text("preset: libero, ", finger) + keys)
    request, actions = asked(contract, np.full((10, 7), 0.5))
    np.testing.assert_allclose(request["observation/state"][6:], [0.4, -0.4], atol=1e-6)
    assert actions.shape == (10, 7) and (actions == 0.5).all()


def test_droid_velocities_pass_and_a_contract_of_positions_is_refused(tmp_path):
    keys = keys_text("openpi-droid", "joints: 2", "base_0_rgb", "left_wrist_0_rgb")
    velocities = GOOD.replace("action: delta", "action: velocity, per_unit: 3.0")
    request, actions = asked(load_plain(tmp_path, velocities + keys), np.full((10, 2), -1.0))
    assert len(request["joints"]) == 2 and (actions == -1.0).all()
    with pytest.raises(ValueError, match="action: velocity"):
        asked(load_plain(tmp_path, GOOD + keys), np.zeros((10, 2)))


MISTAKES: dict[str, Any] = {
    "keys.preset = 'droid'": {"preset": "droid"},
    "keys.images.front": {"images": {**OWN["images"], "front": "a"}},  # type: ignore[dict-item]
    "keys.images.left_wrist_0_rgb is missing": {"images": {"base_0_rgb": "a"}},
    "keys.state.arm": {"state": {"arm": 0.5}},
    "keys.size": {"size": -1},
    "keys.layout": {"layout": "nchw"},
    "keys.turned": {"turned": 1},
    "keys.constants.a": {"constants": {"a": [1]}},
    "keys.constants": {"constants": {1: 2}},
    "keys.dialect": {"dialect": "ros"},
    "keys.answers": {"answers": "torques"},
    "did you mean prompt?": {"promt": "task"},
    "state is there twice": {"prompt": "state"},
    "number a list from 0 on": {"images": {"base_0_rgb": "a > 1", "left_wrist_0_rgb": "a > 2"}},
}


@pytest.mark.parametrize("fact", MISTAKES)
def test_a_mistake_is_named(tmp_path, fact):
    with pytest.raises(ValueError) as error:
        load(tmp_path, MISTAKES[fact])
    assert all(part in str(error.value) for part in fact.split(" is there"))


def test_a_state_of_another_length_is_refused_by_reader_and_writer(tmp_path):
    keys = load(tmp_path, OWN)
    with pytest.raises(ValueError, match="8 numbers"):
        write(keys, dict.fromkeys(IMAGES, PICTURE), np.zeros(8), "")
    with pytest.raises(ValueError, match="joints'"):
        state_in({"arm": {"joints": np.zeros(4), "gripper": [1.0]}}, keys)


def test_a_request_without_a_key_is_told_which(tmp_path):
    keys = load(tmp_path, OWN)
    request = write(keys, dict.fromkeys(IMAGES, PICTURE), np.arange(6.0), "")
    del request["cameras"][1]["rgb"]
    with pytest.raises(ValueError, match="cameras"):
        images_in(request, keys, IMAGES)
    with pytest.raises(ValueError, match="wrist_image_left"):
        images_in({"observation/exterior_image_1_left": PICTURE}, keys_of("openpi-droid", ()), IMAGES)
