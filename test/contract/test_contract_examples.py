"""The contracts of real robots load, fit the published models, and say what openpi's own code does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.findings import ERROR
from vla_accel_ros.contract.model_check import judge
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.config import PI0, PI05

CONTRACTS = Path(__file__).resolve().parents[2] / "config" / "contracts"
# Joints, and for which of them openpi's configurations train deltas.
EXAMPLES = {
    "sim_arm": (6, [1] * 5 + [0]),
    "ur5e_robotiq": (7, [1] * 6 + [0]),
    "franka": (8, [1] * 7 + [0]),
    "so101": (6, [1] * 5 + [0]),
    "so101_bimanual": (12, ([1] * 5 + [0]) * 2),
    "aloha": (14, ([1] * 6 + [0]) * 2),
}


def example(name: str) -> Contract:
    return Contract.load(CONTRACTS / f"{name}.yaml")


def test_examples_are_all_shipped_contracts():
    assert {path.stem for path in CONTRACTS.glob("*.yaml")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("config", [PI0, PI05], ids=["pi0", "pi05"])
def test_contract_fits_the_published_models(name, config):
    contract, (joints, delta) = example(name), EXAMPLES[name]
    trained = np.stack([contract.to_policy([j.lower for j in contract.joints])] * 2) + [[-0.5], [0.5]]
    assert trained.shape == (2, joints) and contract.robot == name
    model = Description(Path("published"), "openpi", config, {}, trained, trained)
    assert not [finding for finding in judge(model, contract) if finding.level == ERROR]
    assert contract.delta_mask.tolist() == [bool(relative) for relative in delta]


@pytest.mark.parametrize("name", EXAMPLES)
def test_contract_lets_a_chunk_last_longer_than_it_may_be_old(name):
    contract = example(name)
    assert contract.chunk.max_age_s < PI0.horizon * contract.chunk.step_dt_s
    assert max(camera.max_age_s for camera in contract.cameras) < contract.chunk.max_age_s


@pytest.mark.parametrize("name", EXAMPLES)
def test_contract_converts_its_limits_to_the_policy_and_back(name):
    contract = example(name)
    limits = np.array([[joint.lower, joint.upper] for joint in contract.joints]).T
    np.testing.assert_allclose(contract.to_robot(contract.to_policy(limits)), limits, atol=1e-12)


@pytest.mark.parametrize("name", ["ur5e_robotiq", "franka"])
def test_contract_has_a_robotiq_open_at_0_and_closed_at_1_as_pi0_has_it(name):
    contract = example(name)
    gripper = contract.joint_names.index("robotiq_85_left_knuckle_joint")
    positions = np.zeros((2, len(contract.joints)))
    positions[1, gripper] = 0.8
    np.testing.assert_allclose(contract.to_policy(positions)[:, gripper], [0.0, 1.0], atol=1e-12)


def test_contract_of_so101_is_in_degrees_with_grippers_in_percent():
    contract = example("so101_bimanual")
    positions = np.array([np.pi / 4] * 12)
    positions[[5, 11]] = (-0.174533 + 1.74533) / 2
    expected = [45.0] * 5 + [50.0]
    np.testing.assert_allclose(contract.to_policy(positions), expected * 2, atol=1e-4)


def crank_rad(finger_m: np.ndarray) -> np.ndarray:
    """The motor's angle at a position of the finger: Interbotix's crank, horn 22 mm and arm 36 mm long."""
    sine = (0.022**2 + finger_m**2 - 0.036**2) / (2 * 0.022 * finger_m)
    return np.arcsin(np.clip(sine, -1.0, 1.0))


def test_contract_of_aloha_is_as_openpi_and_as_far_from_its_crank_as_a_line_is():
    contract = example("aloha")
    signs = [1, -1, -1, 1, 1, 1]
    joints = np.full(14, 0.3)
    arm = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    np.testing.assert_allclose(contract.to_policy(joints)[arm], 0.3 * np.array(signs * 2), atol=1e-12)

    finger = np.linspace(0.021, 0.057, 500)
    action = crank_rad(finger) - 0.5476
    positions = np.zeros((500, 14))
    positions[:, 6] = positions[:, 13] = finger
    line = contract.to_policy(positions)[:, [6, 13]]
    np.testing.assert_allclose(line[[0, -1], 0], action[[0, -1]], atol=1e-3)
    assert np.abs(line - action[:, None]).max() == pytest.approx(0.12, abs=0.005)
    targets = np.zeros((500, 14))
    targets[:, 6] = action
    assert np.abs(contract.to_robot(targets)[:, 6] - finger).max() == pytest.approx(0.0025, abs=0.0002)
    assert np.abs(line[:, 0] - action / (1.6296 - 0.5476)).max() == pytest.approx(0.15, abs=0.005)
