"""An OpenVLA through the nodes: one argument, and its actions leave as chunks of one, hand or joints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from openvla_builders import make_openvla_folder
from running import NodeProcess
from stack import CALM_SENSORS

from vla_accel_ros.contract.contract import TWIST, Contract
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.running.environment import demo_contract

STEP_DT_S = 0.2
SERVO = {"topic": "servo_node/delta_twist_cmds", "kind": "servo_twist", "rate_hz": 50.0, "frame": "base_link"}


def write_contract(folder: Path, actions: str) -> Path:
    """The simulated arm with one camera, for a policy of the hand or of the joints."""
    data: dict[str, Any] = yaml.safe_load(Path(demo_contract()).read_text())
    data["cameras"] = {"front": {**data["cameras"]["front"], "image": "image_primary"}}
    data["chunk"] = {"step_dt_s": STEP_DT_S, "max_age_s": 3.0}
    for joint in data["joints"]:
        joint["action"] = "absolute"
    if actions == "twist":
        arm, gripper = data["controllers"]
        data |= {"actions": "twist", "twist": {"per": "step", "linear": 0.3, "angular": 1.0}}
        data["controllers"] = [{**SERVO, "joints": arm["joints"]}, gripper]
    file = folder / f"{actions}.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


@pytest.fixture(params=["twist", "joints"])
def actions(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def file(tmp_path: Path, actions: str) -> Path:
    return write_contract(tmp_path, actions)


@pytest.fixture
def contract(file: Path) -> Contract:
    return Contract.load(file)


@pytest.fixture
def model(tmp_path: Path, actions: str) -> Path:
    """Statistics of seven numbers for the hand and the gripper, of six for the joints."""
    folder = make_openvla_folder(tmp_path / "model", seed=2)
    config = json.loads((folder / "config.json").read_text())
    entry = config["norm_stats"]["bridge_orig"]["action"]
    if actions == "joints":
        config["norm_stats"]["bridge_orig"]["action"] = {name: entry[name][:6] for name in entry}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def running(operator: Operator) -> str:
    line = operator.diagnostics.get("inference: inference")
    return "" if line is None else line.message


def test_its_actions_are_chunks_of_one(
    start: Callable[..., Any], operator: Operator, contract: Contract, file: Path, model: Path, actions: str
) -> None:
    start("sim_robot", **CALM_SENSORS)
    node = start("inference", autostart=True, model=str(model), contract=str(file), language_hz=5.0)
    operator.instruct("lift the red cup")
    operator.wait(lambda: len(operator.chunks) >= 3, 180.0, "three chunks")
    names = (*TWIST, "gripper") if actions == "twist" else contract.joint_names
    assert contract.action_names == names
    policy = load_policy(model)
    assert isinstance(policy, OpenVLAPolicy)
    low, high = policy.stats.range()
    for received in operator.chunks:
        chunk = received.chunk
        assert chunk.actions.shape == (1, len(names))
        assert chunk.step_dt_s == pytest.approx(STEP_DT_S)
        scaled = chunk.actions[0][policy.stats.mask]  # the others as the network outputs them
        assert (scaled >= low[policy.stats.mask] - 1e-6).all()
        assert (scaled <= high[policy.stats.mask] + 1e-6).all()
    stamps = [received.chunk.stamp_ns for received in operator.chunks]
    assert stamps == sorted(set(stamps))  # one for each frame: it takes no joints in between
    operator.wait(lambda: running(operator) == "running", 90.0, "running in the diagnostics")
    assert "loop language" not in " ".join(operator.diagnostics)
    assert not operator.refused and not operator.answers
    assert "openvla, 0.00 GB in " in node.log


def test_it_is_compared_with_the_contract_before_its_weights_are_read(
    contract: Contract, model: Path, actions: str, tmp_path: Path
) -> None:
    engine = Load(model, device="cpu").engine(contract)
    assert isinstance(engine.policy, OpenVLAPolicy)
    assert np.array_equal(engine.policy.delta_mask, contract.delta_mask)
    other = Contract.load(write_contract(tmp_path, "joints" if actions == "twist" else "twist"))
    with pytest.raises(ValueError, match="numbers an action"):
        Load(model).engine(other)
    warnings: list[str] = []
    Load(model).engine(contract, warnings.append)
    assert any("move a hand by twists, as a rule" in text for text in warnings) == (actions == "joints")


def test_several_data_sets_need_the_parameter(contract: Contract, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["norm_stats"]["kuka"] = config["norm_stats"]["bridge_orig"]
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"\['bridge_orig', 'kuka'\]"):
        Load(model).engine(contract)
    assert Load(model, statistics="kuka").engine(contract).policy.joints == len(contract.action_names)


@pytest.mark.parametrize("actions", ["twist"], indirect=True)
@pytest.mark.parametrize(("mode", "fast"), [("pipelined", True), ("auto", False)])
def test_frames_that_share_forwards_go_down_the_same_path(
    start: Callable[..., NodeProcess], operator: Operator, file: Path, model: Path, mode: str, fast: bool
) -> None:
    start("sim_robot", **CALM_SENSORS)
    node = start(
        "inference", autostart=True, model=str(model), contract=str(file), token_mode=mode, fast=fast
    )
    operator.instruct("lift the red cup")
    operator.wait(lambda: len(operator.chunks) >= 3, 180.0, "three chunks")
    versions = [received.chunk.kv_version for received in operator.chunks]
    stamps = [received.chunk.stamp_ns for received in operator.chunks]
    assert versions == sorted(set(versions)) and stamps == sorted(set(stamps))
    operator.wait(lambda: running(operator) == "running", 90.0, "running in the diagnostics")
    assert fast == ("preparing fast stages, 1 of " in node.log and ": decodes" in node.log)
