"""A robot whose chunks come from a policy server: it moves by them, rests without them, and says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_servers import serving
from running import ROOT
from stack import commanded_acceleration, moved, rests

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_contract

SAYS = "no chunk from the policy server"


class Wave:
    """Answers with a slow wave of the first joint about where the joints are. dims: numbers of an action."""

    def __init__(self, dims: int) -> None:
        self.dims, self.requests = dims, list[dict[str, Any]]()

    def metadata(self) -> dict[str, Any]:
        return {"model": "wave"}

    def answer(self, request: Any) -> dict[str, Any]:
        self.requests.append(request)
        middle = np.array([(joint.lower + joint.upper) / 2 for joint in CONTRACT.joints])
        actions = np.tile(CONTRACT.to_policy(middle), (30, 1))
        phase = 0.25 * len(self.requests) + np.arange(30) * CONTRACT.chunk.step_dt_s
        actions[:, 0] += 0.4 * np.sin(phase)
        return {"actions": np.resize(actions, (30, self.dims))}


CONTRACT = Contract.load(demo_contract())


@pytest.mark.parametrize("node", ["openpi_inference", "fleet_inference"])
def test_the_node_imports_no_torch(node: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import vla_accel_ros.nodes.{node}.node, vla_accel_ros.wire.asking, vla_accel_ros.wire.client\n"
        "del sys.modules['torch']\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('torch', 'triton')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_it_moves_by_the_server_chunks_rests_when_it_is_gone_and_finds_it_again(
    start, operator, arm, cameras
) -> None:
    wave = Wave(6)
    with serving(wave) as server:
        port = server.port
        trajectory = start("trajectory", autostart=True)
        start("openpi_inference", autostart=True, engine="openpi", server_url=f"ws://127.0.0.1:{port}")
        operator.instruct("wave")
        operator.wait(moved(operator, operator.now_ns()), 90.0, "motion by the server's chunks")
    assert wave.requests[0]["prompt"] == "wave"
    assert set(wave.requests[0]["images"]) == {camera.image for camera in CONTRACT.cameras}
    trajectory.wait_for_log(SAYS)
    operator.wait(lambda: rests(operator), 30.0, "rest")
    operator.wait(
        lambda: any(SAYS in reason for motion in operator.motions for reason in motion.reasons),
        30.0,
        "the cause in what the trajectory node says",
    )
    wrong = Wave(7)
    with serving(wrong, port=port):
        operator.wait(
            lambda: any("7 numbers" in reason for motion in operator.motions for reason in motion.reasons),
            30.0,
            "that another policy answers there",
        )
        assert rests(operator)
    with serving(Wave(6), port=port):
        operator.wait(moved(operator, operator.now_ns()), 60.0, "motion by the next server's chunks")
    assert operator.sent and (commanded_acceleration(operator, 0) <= 1.001).all()
    assert not arm.rejected


def test_in_mode_rtc_a_server_is_sent_what_is_executed(start, operator, arm, cameras, tmp_path: Path) -> None:
    text, wave = Path(demo_contract()).read_text(), Wave(6)
    (tmp_path / "robot.yaml").write_text(text + "keys: {continues: true}\n")
    with serving(wave) as server:
        start("trajectory", autostart=True, mode="rtc")
        options = {"engine": "openpi", "server_url": f"ws://127.0.0.1:{server.port}"}
        start("openpi_inference", autostart=True, contract=str(tmp_path / "robot.yaml"), **options)
        operator.instruct("wave")
        operator.wait(lambda: any(request.get("delay") for request in wave.requests), 90.0, "a delay")
    continued = next(request for request in wave.requests if request.get("delay"))
    assert continued["action_prefix"].shape[1] == 6 and len(continued["action_prefix"]) > continued["delay"]
    assert not arm.rejected


@pytest.mark.parametrize(
    ("keys", "fact"), [("openpi-droid", "velocities"), ("openpi-aloha", "base_0_rgb"), ("", "/nowhere/token")]
)
def test_a_server_that_does_not_fit_the_contract_is_refused_at_configuration(
    start, tmp_path: Path, keys: str, fact: str
) -> None:
    contract = tmp_path / "robot.yaml"
    contract.write_text(Path(demo_contract()).read_text() + f"keys: {{preset: {keys or 'native'}}}\n")
    parameters = {"contract": str(contract), "server_token_file": "" if keys else "/nowhere/token"}
    node = start("openpi_inference", autostart=True, engine="openpi", **parameters)
    node.wait_for_log(fact)
