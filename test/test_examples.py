"""The examples run, and what they add is found once it is installed: a family, a controller and a rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders import make_config, make_model, make_tokenizer
from installed import ROOT, python
from safetensors.torch import save_file

from vla_accel_ros import extensions
from vla_accel_ros.extensions import BUILT_IN, CONTROLLERS, HORIZONS, MODEL_FAMILIES, POLICIES, find, load
from vla_accel_ros.models.checkpoints.formats import Format

MOST_LINES = 105
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
LOAD = f"""
import sys; sys.path.append({str(Path(__file__).parent)!r})
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
policy, description = load_policy(sys.argv[1]), describe(sys.argv[1])
print(type(policy).__name__, description.format, description.missing)
print(float(policy.model.embed_table.double().sum()))
from builders import make_observation
from vla_accel_ros import Engine
engine = Engine(policy, steps=2)
with engine.observe(make_observation()) as prefix:
    print(engine.act(prefix).actions.shape, [micro.stage for micro in policy.chain.of_frame])
"""
SCHEDULE = f"""
import sys; sys.path.append({str(Path(__file__).parent)!r})
from builders import make_observation, make_policy
from vla_accel_ros import Engine
from vla_accel_ros.engine.request import Act, Request
engine = Engine(make_policy(), scheduling="newest_first", steps=2)
with engine.observe(make_observation()) as prefix:
    requests = [Request(Act(), prefix=prefix) for _ in range(3)]
    for request in requests:
        engine.scheduler.submit(request)
    for request in requests:
        engine.scheduler.wait(request)
print(*(request.result.request_id for request in requests))
"""
READ = """
import sys
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.checks.graph_check import outputs
try:
    contract = Contract.load(sys.argv[1])
except ValueError as error:
    print(error)
else:
    print(contract.controllers[0].kind, contract.controllers[0].rate_hz, outputs(contract)[0].type)
assert not {"torch", "rclpy", "gripper_adapter"} & set(sys.modules)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A checkpoint of the family that add_family.py adds."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = make_config("pi0")
    tensors = {f"tiny.{name}": value.detach() for name, value in make_model(config).named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"type": "tiny", "sizes": config.to_json()}))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def test_examples_fit_on_a_screen_or_two() -> None:
    lengths = {path.name: path.read_text().count("\n") for path in (ROOT / "examples").glob("*.py")}
    assert {"act.py", "add_rule.py", "add_family.py", "add_controller.py"} <= lengths.keys()
    assert {name for name, lines in lengths.items() if lines > MOST_LINES} == set()


def test_example_act_prints_a_chunk_of_the_bundled_policy() -> None:
    command = [sys.executable, str(ROOT / "examples" / "act.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    head, *targets = done.stdout.splitlines()
    assert "actions" in head and [line.split()[0] for line in targets][-1] == "gripper"


def test_example_family_is_loaded_by_its_contents(added: Path, tiny: Path) -> None:
    done = python(LOAD, tiny, path=added)
    assert done.returncode == 0, done.stderr
    first, second, chunk = done.stdout.splitlines()
    assert first == "Tiny tiny ()"
    assert float(second) == float(make_model(make_config("pi0")).embed_table.detach().double().sum())
    assert chunk == "(8, 8) ['encode', 'prefill']"


def test_example_family_is_unknown_unless_it_is_installed(added: Path, tiny: Path) -> None:
    assert "{'type': 'tiny'}" in python(LOAD, tiny).stderr.replace(", 'sizes'", "}", 1)
    (tiny / "config.json").write_text("{}")
    assert ", tiny or SmolVLA" in python(LOAD, tiny, path=added).stderr


def test_example_rule_schedules_an_engine(added: Path) -> None:
    done = python(SCHEDULE, path=added)
    assert done.stdout == "2 1 0\n", done.stderr


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("my_gripper", ["my_gripper 5.0 std_msgs/msg/Float64MultiArray"]),
        ("my_griper", ["joint_trajectory", "servo_twist", "my_gripper"]),
        ("no_module", ["other-vla 2.0", "nowhere:KIND"]),
        ("no_kind", ["is a str", "ControllerKind"]),
        ("forward_command", ["vla_accel_ros", "other-vla 2.0", "uninstall"]),
    ],
)
def test_example_controller_may_be_named_by_a_contract(
    added: Path, tmp_path: Path, kind: str, facts: list[str]
) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(CONTRACT.replace("KIND", kind))
    done = python(READ, path, path=added)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert [fact for fact in facts if fact not in line] == []


def test_extensions_built_in_are_what_their_groups_hold() -> None:
    for name in BUILT_IN[MODEL_FAMILIES]:
        assert isinstance(find(MODEL_FAMILIES, name), Format)
    for name in BUILT_IN[CONTROLLERS]:
        assert callable(load(extensions.controller_kind(name).adapter).make)
    for group in (POLICIES, HORIZONS):
        for name in BUILT_IN[group]:
            assert callable(find(group, name))


def test_extensions_refuse_an_unknown_name_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'magic' .*joint_trajectory, forward_command"):
        find(CONTROLLERS, "magic")
