"""`vla serve` as a user starts it: a process, asked by a client."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from builders import JOINTS, make_checkpoint, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.serve import threads_for
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.client import PolicyClient
from vla_accel_ros.wire.dialects import ServerError

WAIT_S = 120.0
COMMAND = [sys.executable, "-m", "vla_accel_ros.tools.cli", "serve", "--device", "cpu", "--port", "0"]


def test_the_command_answers_as_its_engine_does_and_ends_by_a_signal(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    picture = np.arange(28 * 28 * 3, dtype=np.uint8).reshape(28, 28, 3)
    state, noise = np.linspace(-0.1, 0.1, JOINTS), np.ones((8, 8), np.float32)
    command = [*COMMAND, "--model", str(model), "--steps", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("ready: ws://127.0.0.1:")
        request = {"images": {"base_0_rgb": picture}, "state": state, "prompt": "reach", "noise": noise}
        actions = PolicyClient(ready.split()[1]).infer(request, WAIT_S)
        server.send_signal(signal.SIGINT)
        assert server.wait(WAIT_S) == 0
    engine = Engine(load_policy(model), steps=3)
    observation = Observation({"base_0_rgb": picture}, state.astype(np.float32), "reach", 0)
    with engine.observe(observation) as prefix:
        assert np.array_equal(actions, engine.act(prefix, noise=noise).actions)


def test_a_contract_says_the_keys_of_the_clients(tmp_path: Path) -> None:
    contract = tmp_path / "robot.yaml"
    keys = "keys: {images: {base_0_rgb: front, left_wrist_0_rgb: wrist}, state: {joints: 6}, prompt: words}\n"
    contract.write_text(Path(demo_contract()).read_text() + keys)
    picture = np.arange(28 * 28 * 3, dtype=np.uint8).reshape(28, 28, 3)
    request = {"front": picture, "wrist": picture, "joints": np.zeros(6), "words": "reach"}
    command = [*COMMAND, "--model", str(make_checkpoint(tmp_path / "model")), "--keys", str(contract)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        client = PolicyClient(server.stdout.readline().split()[1])
        assert client.infer(request, WAIT_S).shape == (8, JOINTS)
        with pytest.raises(ServerError, match="words"):
            client.infer({**request, "words": None}, WAIT_S)
        server.terminate()


def test_as_many_requests_are_computed_at_once_as_a_fleet_sends_the_same_engine() -> None:
    engine = Engine(make_policy(), steps=3, staggered=12, slots=16)
    assert threads_for(engine.config, 64) == LocalReplica(engine, cast(Any, None)).limit == 20
    assert threads_for(engine.config, 5) == 5


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (["--keys", "droid"], "openpi-droid"),
        (["--keys", "starvla"], "starvla"),
        (["--keys", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--clients", "0"], "--clients"),
        (["--certificate", "/nowhere"], "--private-key"),
        (["--token-file", "/dev/null"], "empty"),
        (["--model", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_options_are_one_sentence_and_status_2(options: list[str], fact: str) -> None:
    result = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert result.returncode == 2 and fact in result.stderr and "Traceback" not in result.stderr
