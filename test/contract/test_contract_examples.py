"""The contracts of real robots load, fit the published models, and say what openpi's own code does; limits
come out of a URDF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.contract.checks.findings import ERROR
from vla_accel_ros.contract.checks.model_check import judge
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.files import urdf
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
    ends = [[getattr(joint, end) for joint in contract.joints] for end in ("lower", "upper")]
    trained = np.sort([contract.to_policy(end) for end in ends], axis=0)
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


ROBOT = """\
<?xml version="1.0"?>
<robot name="two">
  <link name="base"/><link name="arm"/>
  <joint name="a" type="revolute"><limit lower="-1.5" upper="2" velocity="3" effort="9"/></joint>
  <joint name="b" type="continuous"><limit lower="0" upper="1" velocity="1.2" effort="1"/></joint>
  <joint name="c" type="prismatic"><limit upper="0.08" effort="1"/></joint>
  <joint name="d" type="revolute"/>
  <joint name="tool" type="fixed"/>
  <transmission name="t"><joint name="a"/></transmission>
</robot>
"""


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "robot.urdf") -> dict[str, urdf.UrdfJoint]:
        path = tmp_path / name
        path.write_text(text)
        return urdf.read(path)

    return read


def test_urdf_gives_moving_joints_and_their_limits(read):
    assert list(read(ROBOT).values()) == [
        urdf.UrdfJoint("a", "revolute", -1.5, 2.0, 3.0),
        urdf.UrdfJoint("b", "continuous", None, None, 1.2),
        urdf.UrdfJoint("c", "prismatic", 0.0, 0.08, None),
        urdf.UrdfJoint("d", "revolute", None, None, None),
    ]


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('upper="2"', 'upper="-2"', "lower = -1.5, not below upper = -2"),
        ('upper="2"', 'upper="2 rad"', "upper = '2 rad'"),
        ('upper="2"', 'upper="inf"', "upper = 'inf'"),
        ('velocity="3"', 'velocity="0"', "velocity = 0"),
    ],
)
def test_urdf_says_which_joint_has_limits_that_cannot_be_and_reads_the_others(read, tmp_path, old, new, fact):
    assert old in ROBOT
    joints = read(ROBOT.replace(old, new))
    assert joints["a"].problem.startswith(f"{tmp_path / 'robot.urdf'}: joint 'a' has {fact}")
    assert joints["b"] == urdf.UrdfJoint("b", "continuous", None, None, 1.2)


XACRO = '<xacro:include xmlns:xacro="http://www.ros.org/wiki/xacro"/>'
ENTITIES = '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('name="b"', 'name="a"', "joint 'a' occurs twice"),
        ('name="b" ', "", "a <joint> has no name"),
        ("</robot>", "", "not valid XML"),
        ("robot", "sdf", "begins with <sdf>, not <robot>"),
        ('<?xml version="1.0"?>', '<?xml version="1.0" encoding="klingon"?>', "not valid XML"),
        ("<link", f"{XACRO}<link", "run `xacro robot.urdf > robot.urdf`"),
        ("<robot", f"{ENTITIES}<robot", "DOCTYPE"),
    ],
)
def test_urdf_is_refused_when_it_is_none(read, tmp_path, old, new, fact):
    assert old in ROBOT
    with pytest.raises(ValueError) as refusal:
        read(ROBOT.replace(old, new))
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.urdf'}: ") and fact in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_urdf_is_refused_when_it_is_xacro_by_name(read):
    with pytest.raises(ValueError, match=r"`xacro robot\.urdf\.xacro > robot\.urdf`"):
        read("not even XML", "robot.urdf.xacro")


@given(st.integers(0, len(ROBOT)), st.text(max_size=5))
def test_urdf_refuses_any_damage_in_a_sentence(tmp_path_factory, at, junk):
    path = tmp_path_factory.getbasetemp() / "damaged.urdf"
    path.write_bytes((ROBOT[:at] + junk + ROBOT[at + len(junk) :]).encode("utf-8", "surrogatepass"))
    try:
        urdf.read(path)
    except ValueError as refusal:
        assert str(refusal).startswith(f"{path}: ")
