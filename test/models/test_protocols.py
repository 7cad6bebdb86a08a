"""Every family has what the protocols of its way to act list: the type checker compares them here."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from builders import make_observation, make_policy
from openvla_builders import make_openvla_folder, make_openvla_observation

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.policies import CapturablePolicy, FlowPolicy, TokenPolicy, WordedPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.types import Observation


def of_pi(policy: Policy) -> tuple[WordedPolicy, FlowPolicy]:
    return policy, policy


def of_smolvla(policy: SmolVLAPolicy) -> tuple[FlowPolicy, CapturablePolicy]:
    return policy, policy


def of_openvla(policy: OpenVLAPolicy) -> tuple[WordedPolicy, TokenPolicy]:
    return policy, policy


def assert_host_images(policy: WordedPolicy, observation: Observation) -> None:
    images = policy.host_images(observation)
    assert [id(image) for image in images] == [id(image) for image in policy.host_inputs(observation).images]
    assert all(np.shares_memory(image, given) for image, given in zip(images, observation.images.values()))
    with pytest.raises(ValueError, match=r"observation\.images has \[\]|observation\.images is empty"):
        policy.host_images(Observation({}, observation.state, "lift", 0))


def test_images_on_the_host_are_those_received_once_checked(tmp_path: Path) -> None:
    openvla = cast(OpenVLAPolicy, load_policy(make_openvla_folder(tmp_path)))
    assert_host_images(of_openvla(openvla)[0], make_openvla_observation())
    assert_host_images(of_pi(make_policy("pi0"))[0], make_observation())
