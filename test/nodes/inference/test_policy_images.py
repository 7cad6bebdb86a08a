"""~/policy_images: the network's own pixels, of every family, and only while somebody looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import CAMERAS, make_checkpoint, make_config, make_observation, make_policy
from drivers import Drivers
from families import TINY, policy_of
from openvla_builders import make_openvla_folder, make_openvla_observation
from sensor_msgs.msg import Image
from smolvla_recording import make_smolvla_folder

from vla_accel_ros import load_policy
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.inference.policy_images import pictures


def network_levels(policy: Any, observation: Any) -> np.ndarray:
    """What the plain network is given, as levels of 0 to 255 [S, V * S, 3]."""
    pixels, levels = policy.inputs(observation).images[:, :3].double(), policy.pixel_rule.levels[:3].double()
    black, white = levels[:, 0].view(3, 1, 1), levels[:, 255].view(3, 1, 1)
    if not policy.pixel_rule.rounds:
        black, white = -1.0, 1.0
    squares = ((pixels - black) / (white - black) * 255.0).clamp(0.0, 255.0)
    return np.concatenate(list(squares.permute(0, 2, 3, 1).numpy()), axis=1)


@pytest.mark.parametrize("family", ["pi", "smolvla", "openvla", "openvla_oft"])
def test_pictures_are_the_pixels_that_the_network_gets(family: str, tmp_path: Path) -> None:
    if family == "openvla":
        policy: Any = load_policy(make_openvla_folder(tmp_path / "model"), statistics="bridge_orig")
        observation, cameras = make_openvla_observation(), 1
    else:
        if family == "openvla_oft":
            policy = policy_of(TINY[family], torch.device("cpu"), torch.float32)
        else:
            policy = make_policy() if family == "pi" else load_policy(make_smolvla_folder(tmp_path / "model"))
        names = policy.config.image_names[:2]
        observation, cameras = make_observation(cameras=tuple(reversed(names)), size=(40, 56)), 2
        if family == "openvla_oft":
            observation = replace(observation, state=np.zeros(policy.config.state_dim, np.float32))
    names, found = pictures(policy, observation)
    size = policy.image_size
    assert found.shape == (size, cameras * size, 3) and found.dtype == np.uint8
    assert names == policy.host_inputs(observation).image_names
    assert np.abs(found - network_levels(policy, observation)).max() <= 1.01


def test_an_image_of_the_networks_size_is_shown_as_it_is() -> None:
    policy = make_policy()
    observation = make_observation(cameras=CAMERAS[:1], size=(policy.image_size, policy.image_size))
    assert (pictures(policy, observation)[1] == observation.images[CAMERAS[0]]).all()


def test_the_node_publishes_them_while_somebody_subscribes(start, operator, contract, tmp_path):
    config = make_config("pi0", horizon=8)
    with Drivers(contract):
        model = make_checkpoint(tmp_path / "model", config)
        start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
        operator.instruct("reach the red block")
        operator.wait(lambda: operator.node.count_publishers("inference/policy_images"), 90.0, "the topic")
        images: list[Image] = []

        def on_image(message: Image) -> None:
            images.append(message)
            operator.changed()

        operator.node.create_subscription(Image, "inference/policy_images", on_image, qos.SENSOR)
        operator.wait(lambda: len(images) > 2, 90.0, "images")
    names = [camera.image for camera in contract.cameras]
    size = config.vision.image_size
    assert images[0].header.frame_id.split() == [name for name in config.image_names if name in names]
    assert (images[0].height, images[0].width, images[0].encoding) == (size, len(names) * size, "rgb8")
    assert len(images[0].data) == images[0].step * size
