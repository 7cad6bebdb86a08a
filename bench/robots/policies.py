"""Checkpoint folders for robots of any number of joints: random weights, whose actions stay near the state.

Only their small files matter for a contract. So that they may be run, too, on a robot that is not there,
deltas are small and a gripper stays in its middle.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.models.config import TRAINED_AS
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.training import USUAL
from vla_accel_ros.models.pi.weights import EMBED_TOKENS
from vla_accel_ros.nodes.running.environment import demo_model
from vla_accel_ros.tools.bench.tiny import tiny_pi

VOCABULARY = 319
"""Of the bundled tokenizer."""


def write_policy(folder: Path, contract: Contract, spread: float = 0.01) -> Path:
    """A pi0.5 trained on the contract's cameras and joints: where they were is around its home. spread: of
    actions, of each joint's range."""
    folder.mkdir(parents=True, exist_ok=True)
    images = tuple(camera.image for camera in contract.cameras)
    joints = len(contract.joints)
    config = replace(
        tiny_pi("pi05", images),
        vocab=VOCABULARY,
        horizon=32,
        max_prompt=96,
        action_dim=max(8, joints),
        state_dim=max(8, joints),
    )
    torch.manual_seed(0)
    tensors = {name: value.detach().contiguous() for name, value in Pi(config).state_dict().items()}
    tensors.pop(EMBED_TOKENS, None)
    save_file(tensors, folder / "model.safetensors")
    sizes = {**config.to_json(), TRAINED_AS: USUAL["pi05"].to_json()}
    (folder / "config.json").write_text(json.dumps({"vla_accel_ros": sizes}))
    shutil.copy(demo_model() / "tokenizer.json", folder / "tokenizer.json")
    (folder / "assets" / "robot").mkdir(parents=True, exist_ok=True)
    middle = [contract.home.get(j.name, 0.5 * (j.lower + j.upper)) for j in contract.joints]
    state = contract.to_policy(middle)
    spans = np.abs(np.diff(contract.to_policy(_ends(contract)), axis=0))[0]
    actions = np.where(contract.delta_mask, 0.0, state)
    groups = {"state": _statistics(state, 0.1 * spans), "actions": _statistics(actions, spread * spans)}
    (folder / "assets" / "robot" / "norm_stats.json").write_text(json.dumps({"norm_stats": groups}))
    return folder


def _ends(contract: Contract) -> np.ndarray:
    """float64 [2, D]: the limits of the joints."""
    return np.array([[j.lower for j in contract.joints], [j.upper for j in contract.joints]])


def _statistics(mean: np.ndarray, deviation: np.ndarray) -> dict[str, list[float]]:
    return {
        "mean": mean.tolist(),
        "std": deviation.tolist(),
        "q01": (mean - 2.33 * deviation).tolist(),
        "q99": (mean + 2.33 * deviation).tolist(),
    }
