"""rosetta loads every contract that we can export, by its own loader, and ours imports its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peers import python, run
from test_rosetta import mobile

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.rosetta import exported, imported
from vla_accel_ros.nodes.running.environment import demo_contract

pytestmark = pytest.mark.peers

CONTRACTS = sorted(Path(demo_contract()).parent.glob("*.yaml"))
LOAD = """
import json, sys
from rosetta.contract.schema import load_contract
from rosetta.contract.specs import iter_action_specs, iter_observation_specs
contract = load_contract(sys.argv[1])
specs = [*iter_observation_specs(contract), *iter_action_specs(contract)]
keys = sorted({spec.key for spec in specs})
print(json.dumps({"fps": contract.fps, "keys": keys, "names": [list(spec.names) for spec in specs]}))
"""


@pytest.mark.parametrize("path", CONTRACTS, ids=[path.stem for path in CONTRACTS])
def test_rosetta_loads_an_exported_contract(tmp_path, path):
    contract = Contract.load(path)
    try:
        text, _ = exported(contract, (224, 224))
    except ValueError as refusal:
        pytest.skip(str(refusal))
    (tmp_path / "theirs.yaml").write_text(text)
    loaded = json.loads(run("rosetta", LOAD, tmp_path / "theirs.yaml").splitlines()[-1])
    images = [f"observation.images.{camera.image}" for camera in contract.cameras]
    assert set(loaded["keys"]) >= {"observation.state", "action", *images}
    assert loaded["fps"] == round(1 / contract.chunk.step_dt_s)


def test_rosetta_loads_the_velocities_of_an_exported_base(tmp_path):
    contract = mobile(tmp_path, {"yaw": 1.0, "x": 1.0}, message="Twist", odometry="/odom")
    (tmp_path / "theirs.yaml").write_text(exported(contract, (224, 224))[0])
    names = json.loads(run("rosetta", LOAD, tmp_path / "theirs.yaml").splitlines()[-1])["names"]
    assert ["twist.twist.angular.z", "twist.twist.linear.x"] in names
    assert names[-1] == ["angular.z", "linear.x"]


def test_rosetta_own_contract_of_an_arm_is_imported():
    """Of its source, which make test-peers has beside its environment."""
    path = Path(python("rosetta")).parents[1] / "source" / "contracts" / "so_101.yaml"
    text, _ = imported(path.read_text(), str(path))
    assert "so_101" in text and "joints:" in text
