"""vla-eval plays Meta-World by our wire: a scripted expert behind our server, and `vla serve` itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import make_checkpoint, make_stats
from peers import WAIT_S, free_port, python

from vla_accel_ros.sim.rendering import choose

pytestmark = pytest.mark.peers

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugins" / "vla_eval"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{PLUGIN}",
    "CUDA_VISIBLE_DEVICES": "",
    "MUJOCO_GL": choose(),
}
EXPERT = """
import asyncio
import numpy as np
from metaworld.policies import SawyerReachV3Policy
from vla_accel_ros.wire.server import PolicyServer

class Expert:
    def metadata(self): return {}
    def answer(self, request):
        assert request["prompt"] == "reach" and request["images"]["front"].shape == (64, 64, 3)
        return {"actions": np.clip(EXPERT.get_action(request["state"].astype(float)), -1, 1)[None]}

async def serve():
    server = PolicyServer(Expert(), port=0)
    await server.start()
    print(f"ready: ws://127.0.0.1:{server.port}", flush=True)
    await asyncio.Event().wait()

EXPERT = SawyerReachV3Policy()
asyncio.run(serve())
"""


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def policy_server(command: Sequence[str]) -> Iterator[str]:
    """Its address, from its first line."""
    with running(command) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]


def played(folder: Path, url: str, camera: str, **params: Any) -> list[dict[str, Any]]:
    """The episodes of vla-eval's report."""
    port = free_port()
    serve = [python("vla_eval"), str(PLUGIN / "policy_server.py"), f"--address=127.0.0.1:{port}"]
    serve += [f"--args.url={url}", f"--args.images={json.dumps({'corner2': camera})}"]
    entry = {"benchmark": "metaworld_suite:MetaWorld", "episodes_per_task": 2}
    entry |= {"params": {"tasks": ["reach-v3"], "size": 64, **params}}
    config = {"server": {"url": f"ws://127.0.0.1:{port}"}, "output_dir": str(folder), "benchmarks": [entry]}
    (folder / "suite.yaml").write_text(yaml.safe_dump(config))
    command = [python("vla_eval").removesuffix("python") + "vla-eval", "run", "--no-docker", "--yes"]
    with running(serve):
        subprocess.run(
            [*command, "-c", str(folder / "suite.yaml")], env=ENVIRONMENT, check=True, timeout=WAIT_S
        )
    reports = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    return [episode for report in reports for task in report.get("tasks", []) for episode in task["episodes"]]


def test_vla_eval_measures_the_success_of_an_expert_behind_our_server(tmp_path):
    with policy_server([python("vla_eval"), "-c", EXPERT]) as url:
        episodes = played(tmp_path, url, "front", full_state=True)
    assert [episode["metrics"]["success"] for episode in episodes] == [True, True]


def test_vla_eval_drives_vla_serve(tmp_path):
    """A random policy of Meta-World's state and action: its chunks are executed, and do not succeed."""
    model = make_checkpoint(tmp_path / "model")
    stats = {"norm_stats": {"state": make_stats(0, 4), "actions": make_stats(1, 4)}}
    (model / "assets" / "arm" / "norm_stats.json").write_text(json.dumps(stats))
    command = [sys.executable, "-m", "vla_accel_ros.tools.cli", "serve", "--device=cpu", "--port=0"]
    with policy_server([*command, f"--model={model}"]) as url:
        episodes = played(tmp_path, url, "base_0_rgb", max_steps=20)
    assert [episode["metrics"]["success"] for episode in episodes] == [False, False]
    assert [episode["steps"] for episode in episodes] == [20, 20]
