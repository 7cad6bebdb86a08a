"""Another package adds a model family, a kind of controller and a scheduling policy, by being installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import make_config, make_model, make_tokenizer
from installed import python
from safetensors.torch import save_file

from vla_accel_ros import extensions
from vla_accel_ros.extensions import BUILT_IN, CONTROLLERS, HORIZONS, MODEL_FAMILIES, POLICIES, find, load
from vla_accel_ros.models.checkpoints.formats import Format

CONTRACT = """\
robot: arm
cameras:
  top: {topic: camera/top, image: base_0_rgb, rate_hz: 30, max_age_s: 0.2}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
joints:
  - {name: a, lower: -1, upper: 1, velocity: 1, acceleration: 9, action: absolute}
controllers:
  - {kind: KIND, topic: gripper/goal, joints: [a], rate_hz: 5}
chunk: {step_dt_s: 0.05, max_age_s: 0.5}
"""


def tiny_checkpoint(folder: Path) -> Path:
    folder.mkdir()
    config = make_config("pi0")
    tensors = {f"tiny.{name}": value.detach() for name, value in make_model(config).named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"type": "tiny", "sizes": config.to_json()}))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def test_everything_of_this_package_is_what_its_group_holds() -> None:
    for name in BUILT_IN[MODEL_FAMILIES]:
        assert isinstance(find(MODEL_FAMILIES, name), Format)
    for name in BUILT_IN[CONTROLLERS]:
        assert callable(load(extensions.controller_kind(name).adapter).make)
    for name in BUILT_IN[POLICIES]:
        assert callable(find(POLICIES, name))
    for name in BUILT_IN[HORIZONS]:
        assert callable(find(HORIZONS, name))


def test_what_nobody_provides_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'magic' is none of .*\(joint_trajectory, forward_command, servo"):
        find(CONTROLLERS, "magic")


def test_a_family_of_another_package_is_loaded_by_its_contents(added: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint")
    program = (
        "import sys\n"
        "from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy\n"
        "policy, told = load_policy(sys.argv[1]), describe(sys.argv[1])\n"
        "print(type(policy).__name__, told.config.kind, told.state_dim, told.horizon, told.missing)\n"
        "print(float(policy.model.embed_table.double().sum()))"
    )
    done = python(program, folder, path=added)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "Policy tiny 0 1 ()"
    assert float(second) == float(make_model(make_config("pi0")).embed_table.detach().double().sum())


def test_without_that_package_its_checkpoint_is_refused(added: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint")
    program = (
        "import sys\nfrom vla_accel_ros.models.checkpoints.checkpoint import load_policy\n"
        "load_policy(sys.argv[1])"
    )
    done = python(program, folder)
    assert "is no checkpoint that is known here (config.json says {'type': 'tiny'}" in done.stderr
    (folder / "config.json").write_text("{}")
    assert (
        "give the folder of a pi0, pi0.5, OpenVLA, tiny or SmolVLA"
        in python(program, folder, path=added).stderr
    )


def test_a_policy_of_another_package_is_found(added: Path) -> None:
    program = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
        "from builders import make_observation, make_policy\n"
        "from vla_accel_ros import Engine\n"
        "from vla_accel_ros.engine.request import ACT, Request\n"
        "engine = Engine(make_policy(), scheduling='tiny_policy', steps=2)\n"
        "with engine.observe(make_observation()) as prefix:\n"
        "    asked = [Request(ACT, prefix=prefix) for _ in range(3)]\n"
        "    for request in asked:\n"
        "        engine.scheduler.submit(request)\n"
        "    for request in asked:\n"
        "        engine.scheduler.wait(request)\n"
        "print(*(request.result.request_id for request in asked))"
    )
    done = python(program, path=added)
    assert done.stdout == "2 1 0\n", done.stderr


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("tiny_gripper", "tiny_gripper 5.0"),
        ("tiny_griper", "unknown: write joint_trajectory or forward_command or servo_joint or servo_twist"),
        ("tiny_griper", " or tiny_gripper or tiny_missing or tiny_wrong"),
        ("tiny_missing", "provided by tiny-vla 1.2.0 as tiny_vla.nowhere:KIND, cannot be imported"),
        ("tiny_wrong", "is a str; let it be a ControllerKind"),
        ("forward_command", "is provided by vla_accel_ros and by tiny-vla 1.2.0; uninstall all but one"),
    ],
)
def test_a_contract_may_name_its_controller(added: Path, tmp_path: Path, kind: str, says: str) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(CONTRACT.replace("KIND", kind))
    program = (
        "import sys\n"
        "from vla_accel_ros.contract.contract import Contract\n"
        "from vla_accel_ros.contract.graph_check import outputs\n"
        "try:\n"
        "    contract = Contract.load(sys.argv[1])\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    (controller,), (wanted,) = contract.controllers, outputs(contract)\n"
        "    assert wanted.type == 'std_msgs/msg/Float64MultiArray'\n"
        "    print(controller.kind, controller.rate_hz)\n"
        "assert not {'torch', 'rclpy', 'tiny_vla.adapter'} & set(sys.modules)"
    )
    done = python(program, path, path=added)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert len(done.stdout.splitlines()) == 1
