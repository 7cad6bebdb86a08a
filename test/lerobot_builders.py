"""Small folders as lerobot saves a pi0 or pi0.5: its names, its config.json, its two processor files.

As in builders.py, whatever a test uses was written to a folder and loaded like any other. The tokeniser, that
lerobot takes from the hub, is beside the weights, as a user must put it there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders import JOINTS, make_config, make_model, make_tokenizer
from safetensors.torch import save_file

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.pi.weights import EMBED_TOKENS, LM_HEAD

CAMERAS = ("top", "wrist")
NAMES = ("shoulder", "lift", "elbow", "flex", "roll", "gripper")
MODES = {"pi0": "MEAN_STD", "pi05": "QUANTILES"}


def make_lerobot_config(kind: str = "pi05", **changes: Any) -> PiConfig:
    """The sizes of builders.make_config, with lerobot's names of cameras."""
    return make_config(kind, image_names=CAMERAS, **changes)


def make_lerobot_stats(seed: int = 0) -> dict[str, np.ndarray]:
    """Every statistic of six joints that move about -1..1, float32 as lerobot saves them."""
    rng = np.random.default_rng(seed)
    mean, std = rng.uniform(-0.3, 0.3, JOINTS), rng.uniform(0.3, 0.6, JOINTS)
    values = {"mean": mean, "std": std, "q01": mean - 2 * std, "q99": mean + 2 * std}
    return {name: value.astype(np.float32) for name, value in values.items()}


def make_lerobot_folder(
    folder: Path,
    config: PiConfig | None = None,
    seed: int = 0,
    *,
    tied: Sequence[str] = (LM_HEAD,),
    before: str = "model.",
    relative: bool | None = None,
    **changes: Any,
) -> Path:
    """A whole folder. tied: names of the one tensor; before: what stands before every name; relative: whether
    actions are, None for a folder that has no such steps; changes: fields of config.json."""
    config = make_lerobot_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(make_model(config, seed).state_dict())
    table = tensors.pop(EMBED_TOKENS)
    tensors.pop(LM_HEAD)
    tensors |= {name: table.clone() for name in tied}
    save_file(
        {before + name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    side = config.vision.image_size
    images = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 48, 64]} for name in CAMERAS}
    data = {
        "type": config.kind,
        "n_obs_steps": 1,
        "input_features": {
            "observation.state": {"type": "STATE", "shape": [JOINTS]},
            **images,
            "observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, side, side]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [JOINTS]}},
        "chunk_size": config.horizon,
        "max_state_dim": config.state_dim,
        "max_action_dim": config.action_dim,
        "tokenizer_max_length": config.max_prompt,
        "image_resolution": [side, side],
        "vla_accel_ros": config.to_json(),
    }
    (folder / "config.json").write_text(json.dumps({**data, **changes}))
    write_processors(folder, config.kind, seed, relative)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def write_processors(folder: Path, kind: str, seed: int, relative: bool | None) -> None:
    """The two files and the statistics that they name, under names that no count of steps would give."""
    steps: list[list[dict[str, Any]]] = [
        [{"registry_name": "rename_observations_processor", "config": {"rename_map": {}}}],
        [],
    ]
    if relative is not None:
        config = {"enabled": relative, "exclude_joints": ["gripper"], "action_names": list(NAMES)}
        steps[0].append({"registry_name": "relative_actions_processor", "config": config})
        steps[1].append({"registry_name": "absolute_actions_processor", "config": {"enabled": relative}})
    prepare = "pi0_new_line_processor" if kind == "pi0" else "pi05_prepare_state_tokenizer_processor_step"
    steps[0].append({"registry_name": prepare, "config": {}})
    modes = {"VISUAL": "IDENTITY", "STATE": MODES[kind], "ACTION": MODES[kind]}
    for index, (file, name) in enumerate(
        (("policy_preprocessor", "normalizer"), ("policy_postprocessor", "unnormalizer"))
    ):
        stats = {
            f"{key}.{which}": torch.from_numpy(value)
            for key, shift in (("observation.state", 0), ("action", 1))
            for which, value in make_lerobot_stats(seed + shift).items()
        }
        state_file = f"{name}_of_{file}.safetensors"
        save_file(stats, folder / state_file)
        step = {
            "registry_name": f"{name}_processor",
            "config": {"eps": 1e-8, "norm_map": modes},
            "state_file": state_file,
        }
        steps[index].insert(1 if index == 0 else 0, step)
        (folder / f"{file}.json").write_text(json.dumps({"name": file, "steps": steps[index]}))
