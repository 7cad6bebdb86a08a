"""lerobot itself opens a dataset of marked episodes, and trains a step on it (`make test-peers`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from driven_bag import Drive, level, measured
from test_episodes import MARKS, TELEOP
from test_export import FPS

from vla_accel_ros.tools.export.convert import export

pytestmark = pytest.mark.peers

READ = """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
frames = LeRobotDataset("local/arm", root=sys.argv[1])
rows = [frames[i] for i in range(len(frames))]
print(json.dumps({
    "episode": [int(row["episode_index"]) for row in rows],
    "task": [row["task"] for row in rows],
    "success": [bool(row["next.success"]) for row in rows],
    "intervention": [bool(row["intervention"]) for row in rows],
    "done": [bool(row["next.done"]) for row in rows],
    "state": [row["observation.state"].tolist() for row in rows],
    "grey": [float(row["observation.images.front"].mean()) * 255 for row in rows],
    "outcome": list(frames.meta.episodes["outcome"]),
    "subtasks": [[part["content"] for part in row["language_persistent"]] for row in rows],
}))
"""
CORRECTED = ((0.0, 1), (2.8, 5), (3.0, 1))
"""Times and states of motion: a person has the arm for 0.2 s."""
SUBTASKS = ((1.3, "grasp the cloth"), (2.7, "fold it"))
TINY = "type=act device=cpu push_to_hub=false pretrained_backbone_weights=null dim_model=64 n_heads=2"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Three marked episodes, the last with a correction and two subtasks."""
    folder = tmp_path_factory.mktemp("peers")
    Drive(folder / "bag", seconds=4.0, marks=MARKS, motion=CORRECTED, teleop=TELEOP, subtasks=SUBTASKS)
    assert export([folder / "bag"], folder / "dataset") == 3
    return folder / "dataset"


def run(program: str, *arguments: str) -> str:
    """What a program of the environment PEERS prints."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(Path(os.environ["PEERS"]) / "lerobot" / "bin" / program), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stderr + result.stdout


def test_lerobot_reads_what_was_seen_felt_told_and_judged(dataset):
    frames = json.loads(run("python", "-c", READ, str(dataset)).splitlines()[-1])
    episodes = np.array(frames["episode"])
    assert frames["outcome"] == ["success", "unlabeled", "failure"] and set(episodes) == {0, 1, 2}
    last = np.append(np.diff(episodes) > 0, True)
    np.testing.assert_array_equal(frames["done"], last)
    np.testing.assert_array_equal(frames["success"], last & (episodes == 0))
    human = np.array(frames["intervention"])
    assert human[episodes == 2].sum() == 6 and not human[episodes < 2].any()
    parts = [frames["subtasks"][i] for i in np.flatnonzero(last)]
    assert parts == [[], ["grasp the cloth"], ["grasp the cloth", "fold it"]]  # it is still acted on
    assert [frames["task"][i] for i in np.flatnonzero(last)] == ["fold", "reach the red block", "fold"]
    for episode, begin_s in enumerate((0.5, 1.2, 2.6)):
        times_s = (np.ceil(begin_s * FPS - 1e-9) + np.arange((episodes == episode).sum())) / FPS
        states = np.array(frames["state"])[episodes == episode]
        expected = [[measured(t, joint) for joint in range(6)] for t in times_s]
        np.testing.assert_allclose(states, expected, atol=1e-3)
        greys = np.array(frames["grey"])[episodes == episode]
        np.testing.assert_allclose(greys, [level(t) for t in times_s], atol=3.0)


def test_lerobot_trains_a_step(dataset, tmp_path):
    text = run(
        "lerobot-train",
        "--dataset.repo_id=local/arm",
        f"--dataset.root={dataset}",
        *(
            f"--policy.{option}"
            for option in (*TINY.split(), "chunk_size=8", "n_action_steps=8", "dim_feedforward=64")
        ),
        *("--steps=1", "--log_freq=1", "--batch_size=4", "--num_workers=0", "--save_checkpoint=false"),
        "--wandb.enable=false",
        f"--output_dir={tmp_path / 'run'}",
    )
    assert "dataset.num_episodes=3" in text
    loss = re.search(r"step:1 .*loss:(\S+)", text)
    assert loss is not None and np.isfinite(float(loss[1])) and float(loss[1]) > 0.0
