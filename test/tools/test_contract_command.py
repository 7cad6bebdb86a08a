"""`vla contract make` and `vla contract check`: it holds what is known and asks for the rest by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config
from lerobot_builders import NAMES, make_lerobot_folder
from openvla_builders import make_openvla_folder
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.contract.write import fill

ODD = ("cam-high", "wrist.left", "yes", "2", "x: y", "a #b", "a_b", "a b")
OWN = {
    "acceleration": 5.0,
    "lower": -1.5,
    "upper": 2.5,
    "velocity": 1.0,
    "step_dt_s": 0.05,
    "actions": "joints",
    "action": "absolute",
    "unit": "deg",
    "per": "step",
    "linear": 0.2,
    "angular": 1.0,
    "frame": "base_link",
    "name": "joint_{}",
}
"""What a user fills in, by key."""
URDF = """<robot name="six">
{joints}
  <joint name="finger" type="prismatic"><limit upper="0.04" velocity="1"/><mimic joint="j6"/></joint>
</robot>"""


def write_statistics(folder: Path, state: np.ndarray, actions: np.ndarray) -> Path:
    """Replace the statistics of an openpi folder. state, actions: mean and deviation, [2, D] each."""
    (file,) = folder.rglob("norm_stats.json")
    groups = {
        group: {
            "mean": mean.tolist(),
            "std": std.tolist(),
            "q01": (mean - 2.33 * std).tolist(),
            "q99": (mean + 2.33 * std).tolist(),
        }
        for group, (mean, std) in (("state", state), ("actions", actions))
    }
    file.write_text(json.dumps({"norm_stats": groups}))
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def filled(text: str, **own: object) -> str:
    return fill(text, {key: str(value) for key, value in {**OWN, **own}.items()})


MAKERS = {
    "odd cameras": lambda folder: make_checkpoint(folder, make_config("pi0", image_names=ODD)),
    "pi0": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "lerobot": lambda folder: make_lerobot_folder(folder, relative=True),
    "openvla": lambda folder: make_openvla_folder(folder, shards=2),
    "smolvla": lambda folder: make_smolvla_folder(folder),
    "bundled": lambda folder: demo_model(),
}


@pytest.mark.parametrize("name", MAKERS)
def test_contract_command_prints_a_contract_that_the_model_serves_once_filled_in(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = MAKERS[name](tmp_path / "model"), tmp_path / "robot.yaml"
    text = printed(capsys, "contract", "make", "--model", folder)
    assert printed(capsys, "inspect", folder, "--contract") == text
    file.write_text(text)
    assert main(["contract", "check", str(file)]) == 2
    refusal = capsys.readouterr().err
    for field in ("acceleration", "joints[0].lower", "joints[0].upper", "joints[0].velocity", "step_dt_s"):
        assert field in refusal

    file.write_text(filled(text))
    output = printed(capsys, "contract", "check", file, "--model", folder)
    assert "error" not in output and "fits the contract" in output
    contract = Contract.load(file)
    engine = Load(folder, EngineConfig(steps=1), device="cpu").engine(contract)
    assert engine.policy.joints == len(contract.action_names)
    assert contract.actions == ("twist" if name == "openvla" else "joints")


def test_contract_command_policy_of_relative_actions_is_told_by_its_means_and_refused_as_absolute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundled policy's statistics, in another folder: joints 3 and 4 act about zero, the gripper where it
    is; joints that were about zero themselves decide nothing."""
    source = json.loads((demo_model() / "assets" / "demo" / "norm_stats.json").read_text())["norm_stats"]
    state, actions = (
        np.array([source[group]["mean"], source[group]["std"]]) for group in ("state", "actions")
    )
    folder, file = write_statistics(make_checkpoint(tmp_path / "model"), state, actions), tmp_path / "r.yaml"
    text = printed(capsys, "contract", "make", "--model", folder)
    lines = [line for line in text.splitlines() if line.startswith("    action: ")]
    assert [line.split()[1] for line in lines] == ["???", "???", "delta", "delta", "???", "absolute"]
    assert "1.605" in lines[2] and "0.033" in lines[2]

    file.write_text(filled(text, action="delta"))
    assert "error" not in printed(capsys, "contract", "check", file, "--model", folder)
    Load(folder, EngineConfig(steps=1), device="cpu").engine(Contract.load(file))
    file.write_text(filled(text).replace("action: delta", "action: absolute"))
    assert main(["contract", "check", str(file), "--model", str(folder)]) == 1
    output = capsys.readouterr().out
    assert "joint_3" in output and "joint_4" in output and "1.605" in output
    with pytest.raises(ValueError, match=r"joint_3.*1\.605"):
        Load(folder, EngineConfig(steps=1), device="cpu").engine(Contract.load(file))


def test_contract_command_limits_are_the_urdfs_and_training_ranges_are_comments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Degrees: their range in radians would be no limit at all."""
    mean, std = np.array([10.0, -20.0, 0.0, 30.0, -10.0, 50.0]), np.full(6, 45.0)
    folder = write_statistics(
        make_checkpoint(tmp_path / "model"), np.stack([mean, std]), np.stack([mean, std])
    )
    text = printed(capsys, "inspect", folder, "--contract")
    assert text.count("lower: ???") == text.count("upper: ???") == text.count("unit: ???") == 6
    joints = "".join(
        f'  <joint name="j{i}" type="revolute"><limit lower="-{i}.25" upper="1.5" velocity="{i}"/></joint>\n'
        for i in range(1, 7)
    )
    robot, file = tmp_path / "six.urdf", tmp_path / "robot.yaml"
    robot.write_text(URDF.format(joints=joints.replace("-6.25", "-3.25")))
    text = printed(capsys, "contract", "make", "--model", folder, "--urdf", robot)
    assert "lower: ???" not in text and "velocity: ???" not in text
    file.write_text(filled(text))
    contract = Contract.load(file)
    assert contract.joint_names == ("j1", "j2", "j3", "j4", "j5", "j6")
    assert [joint.lower for joint in contract.joints] == [-1.25, -2.25, -3.25, -4.25, -5.25, -3.25]
    assert [joint.velocity for joint in contract.joints] == [1, 2, 3, 4, 5, 6]
    assert all(joint.unit == "deg" for joint in contract.joints)
    file.write_text(filled(text, unit="rad"))
    assert main(["contract", "check", str(file), "--model", str(folder)]) == 1
    output = capsys.readouterr().out
    assert [f"(j{i})" in output for i in range(1, 7)] == [True] * 6

    robot.write_text(URDF.format(joints=joints.replace("revolute", "continuous").replace("-6.25", "-3")))
    text = printed(capsys, "contract", "make", "--model", folder, "--urdf", robot)
    file.write_text(filled(text, lower=-50, upper=50, unit="rad"))
    assert all(joint.continuous for joint in Contract.load(file).joints)
    assert "error" not in printed(capsys, "contract", "check", file, "--model", folder)


HAND = np.array(
    [[0.32, 0.04, 0.1, 0.0, -0.165, 0.05, 0.525], [0.065, 0.105, 0.06, 0.125, 0.143, 0.35, 0.2375]]
)
MOVES = np.array([[0.0, 0.0, 0.005, 0.0, -0.005, 0.0, 0.5], [0.015, 0.02, 0.0175, 0.04, 0.0425, 0.1, 0.25]])
"""Bridge's, as in its norm_stats.json: the pose of a hand, and its displacements."""


def test_contract_command_actions_of_a_hand_are_not_taken_for_joints_unless_the_contract_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = write_statistics(make_checkpoint(tmp_path / "model"), HAND, MOVES), tmp_path / "robot.yaml"
    text = printed(capsys, "contract", "make", "--model", folder)
    assert "actions: ???" in text
    for reading in ("delta", "velocities", "twist"):
        assert reading in text.partition("actions: ???")[0]
    silent = re.sub("actions: joints.*\n", "", filled(text, action="delta"))
    for written in (silent, silent.replace("action: delta", "action: absolute")):
        file.write_text(written)
        assert main(["contract", "check", str(file), "--model", str(folder)]) == 1
        output = capsys.readouterr().out
        assert "0.32" in output and "velocities" in output and "actions: twist" in output
        with pytest.raises(ValueError, match="velocities"):
            Load(folder, EngineConfig(steps=1), device="cpu").engine(Contract.load(file))


@pytest.mark.parametrize(("states", "actions"), [(8, 7), (7, 8), (8, 6)])
def test_contract_command_states_and_actions_of_different_numbers_get_no_contract_of_joints(
    states: int, actions: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_statistics(
        make_checkpoint(tmp_path / "model"),
        np.full((2, states), [[0.1], [0.3]]),
        np.full((2, actions), [[0.1], [0.3]]),
    )
    for command in (["contract", "make", "--model", str(folder)], ["inspect", str(folder), "--contract"]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1
        for part in (f"{states} states", f"{actions} actions", "relative", "velocities", "hand"):
            assert part in err
    assert main(["inspect", str(folder)]) == 0
    assert "velocities" in capsys.readouterr().out


@pytest.mark.parametrize(("joints", "filled_to"), [(6, 8), (3, 8)])
def test_contract_command_statistics_that_zeros_fill_up_are_of_the_joints_before_them(
    joints: int, filled_to: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = np.zeros((2, filled_to))
    state[:, :joints] = [[0.2], [0.4]]
    folder = write_statistics(make_checkpoint(tmp_path / "model"), state, state[:, :joints])
    file = tmp_path / "robot.yaml"
    file.write_text(filled(printed(capsys, "contract", "make", "--model", folder)))
    contract = Contract.load(file)
    assert len(contract.joints) == joints
    assert "error" not in printed(capsys, "contract", "check", file, "--model", folder)
    policy = Load(folder, EngineConfig(steps=1), device="cpu").engine(contract).policy
    middle = np.full(joints, 0.2, np.float32)
    # openpi: digitize((x - q01) / (q99 - q01 + 1e-6) * 2 - 1), of the filled state; its middle is bin 127
    bins = " ".join(["127"] * joints + ["0"] * (filled_to - joints))
    prompt = policy.tokenizer.encode(f"Task: reach, State: {bins};\nAction: ", bos=True)
    assert policy.prompt("reach", middle) == prompt


def test_contract_command_names_of_the_training_are_in_the_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_lerobot_folder(tmp_path / "model", relative=False)
    file = folder / "policy_preprocessor.json"
    saved = json.loads(file.read_text())
    for step in saved["steps"]:
        if step["registry_name"] == "rename_observations_processor":
            swapped = {"gripper_cam": "top", "overhead": "wrist"}
            key = "observation.images."
            step["config"]["rename_map"] = {key + trained: key + ours for trained, ours in swapped.items()}
        if step["registry_name"] == "relative_actions_processor":
            step["config"]["action_names"] = [f"{name}.pos" for name in NAMES]
    file.write_text(json.dumps(saved))
    output = printed(capsys, "inspect", folder)
    assert "top (gripper_cam in training)" in output and "wrist (overhead in training)" in output
    text = printed(capsys, "contract", "make", "--model", folder)
    assert "top (gripper_cam in training)" in text and "wrist (overhead in training)" in text
    (tmp_path / "robot.yaml").write_text(filled(text))
    contract = Contract.load(tmp_path / "robot.yaml")
    assert contract.joint_names == NAMES
    assert {camera.image: camera.topic for camera in contract.cameras} == {
        "top": "camera/gripper_cam/image_raw",
        "wrist": "camera/overhead/image_raw",
    }


def test_contract_command_check_needs_no_model_and_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "6 joints" in printed(capsys, "contract", "check", demo_contract())
    file = tmp_path / "robot.yaml"
    file.write_text(
        demo_contract().read_text().replace("lower: -1.6, upper: 1.6", "lower: -92, upper: 92", 1)
    )
    assert main(["contract", "check", str(file)]) == 2
    assert "joints[0].lower = -92" in capsys.readouterr().err


def test_contract_command_bundled_policys_contract_has_its_relative_actions_with_their_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "contract", "make", "--model", demo_model())
    lines = [line.split() for line in text.splitlines() if line.startswith("    action: ")]
    assert [line[1] for line in lines] == ["delta"] * 5 + ["absolute"]
    assert "1.605" in lines[2] and "0.033," in lines[2]


@pytest.mark.parametrize("name", ["pi0_droid", "pi0_libero"])
def test_contract_command_takes_no_velocities_or_displacements_for_joints_even_without_statistics(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config("pi0", horizon=10 if name == "pi0_droid" else 50)
    folder = write_statistics(
        make_checkpoint(tmp_path / "model", config),
        np.full((2, 8), [[0.1], [0.3]]),
        np.full((2, 8), [[0.1], [0.3]]),
    )
    assert printed(capsys, "contract", "make", "--model", folder)
    config_json = json.loads((folder / "config.json").read_text())
    del config_json["vla_accel_ros"]["trained_as"]
    (folder / "config.json").write_text(json.dumps(config_json))
    assert main(["contract", "make", "--model", str(folder), "--as", name]) == 2
    out, err = capsys.readouterr()
    assert not out and ("velocities of seven joints" if name == "pi0_droid" else "of the hand") in err


@pytest.mark.parametrize("answer", ["own", "padded"])
def test_contract_command_checks_a_lerobot_folder_without_version_once_as_says_it(
    answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = make_lerobot_folder(tmp_path / "model", use_peft=False), tmp_path / "robot.yaml"
    file.write_text(filled(printed(capsys, "contract", "make", "--model", folder)))
    check = ["contract", "check", str(file), "--model", str(folder)]
    assert main(check) != 0
    assert "--as" in (refusal := capsys.readouterr().err) and "prompt_state=padded" in refusal
    printed(capsys, *check, "--as", f"prompt_state={answer}")
    contract = Contract.load(file)
    with pytest.raises(ValueError, match="prompt_state=padded"):
        Load(folder, device="cpu").engine(contract)
    for words, parameter in ((f"prompt_state={answer}", "auto"), ("", answer)):
        load = Load(folder, EngineConfig(steps=1), device="cpu", trained_as=words, prompt_state=parameter)
        engine = load.engine(contract)
        for policy in (engine.policy, load.embodiment(engine.policy, contract).policy):
            assert isinstance(policy, Policy) and policy.prompt_state == answer
