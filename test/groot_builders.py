"""Folders of GR00T as NVIDIA and as lerobot save them, made of the recorded ones: a layout of each is
there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data" / "oracles"
KINDS = ("groot_n1_7", "groot_n1_5")
LAYOUTS = ("nvidia", "lerobot")
TAG = "oxe_droid_relative_eef_relative_joint"
OTHER, HAND = "other_arm", "hand_alone"
ROOT = "_groot_model."
JOINTS = """\
robot: arm
cameras:
  front: {topic: camera/front/image_raw, image: front, rate_hz: 30, max_age_s: 0.2}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
acceleration: 10
joints:
  - {name: a, lower: -1, upper: 1, velocity: 2, action: absolute}
  - {name: b, lower: 0, upper: 4, velocity: 2, action: absolute}
  - {name: c, lower: 4, upper: 6, velocity: 2, action: absolute}
controllers:
  - {topic: arm/joint_trajectory, joints: [a, b, c]}
chunk: {step_dt_s: 0.05, max_age_s: 0.6}
"""
"""A contract of the joints that `add_embodiment` tells of."""


def make_groot_folder(folder: Path, kind: str = "groot_n1_7", layout: str = "nvidia") -> Path:
    """Write a folder with the recorded weights, and beside it what its layout has there; returns it."""
    if layout == {"groot_n1_7": "nvidia", "groot_n1_5": "lerobot"}[kind]:
        name = "checkpoint" if layout == "nvidia" else "checkpoint_lerobot"
        shutil.copytree(DATA / kind / name, folder)
    elif layout == "lerobot":
        _lerobots(folder)
    else:
        _nvidias_1_5(folder)
    if kind == "groot_n1_5":
        shutil.copytree(DATA / kind / "eagle_assets", folder / "eagle_assets")
    if layout == "lerobot":
        shutil.copytree(
            DATA / kind / "checkpoint", folder / "base", ignore=shutil.ignore_patterns("*.safetensors")
        )
        _edit(folder / "config.json", {"base_model_path": "base"})
    return folder


def add_embodiment(folder: Path, tag: str = OTHER, number: int = 1) -> None:
    """Describe a second embodiment in NVIDIA's folder: absolute joints alone, one camera, chunks of five
    actions."""
    processor = json.loads((folder / "processor_config.json").read_text())
    configs = processor["processor_kwargs"]["modality_configs"]
    groups = {"modality_keys": ["joint_position"], "delta_indices": [0]}
    configs[tag] = {
        "video": {"modality_keys": ["front"], "delta_indices": [0]},
        "state": groups,
        "action": {
            **groups,
            "delta_indices": [*range(5)],
            "action_configs": [{"rep": "ABSOLUTE", "type": "NON_EEF"}],
        },
    }
    (folder / "processor_config.json").write_text(json.dumps(processor))
    ranges = {
        "joint_position": {
            "min": [-1.0, 0.0, 5.0],
            "max": [1.0, 4.0, 5.0],
            "q01": [-0.5, 1.0, 5.0],
            "q99": [0.5, 3.0, 5.0],
        }
    }
    _edit(folder / "statistics.json", {tag: {"state": ranges, "action": ranges}})
    _edit(folder / "embodiment_id.json", {tag: number})


def add_hand(folder: Path, tag: str = HAND) -> None:
    """Describe a third embodiment in NVIDIA's folder: the pose of a hand and a gripper, as its first one
    has them."""
    file = folder / "processor_config.json"
    processor = json.loads(file.read_text())
    configs = processor["processor_kwargs"]["modality_configs"]
    hand = json.loads(json.dumps(configs[TAG]))
    for kind in ("state", "action"):
        hand[kind]["modality_keys"] = hand[kind]["modality_keys"][:2]
    hand["action"]["action_configs"] = hand["action"]["action_configs"][:2]
    configs[tag] = hand
    file.write_text(json.dumps(processor))
    statistics = json.loads((folder / "statistics.json").read_text())
    _edit(folder / "statistics.json", {tag: statistics[TAG]})
    _edit(folder / "embodiment_id.json", {tag: 2})


def _lerobots(folder: Path) -> None:
    """N1.7 as lerobot saves it."""
    source = DATA / "groot_n1_7" / "checkpoint"
    folder.mkdir()
    shutil.copytree(source / "backbone", folder / "backbone")
    weights = {ROOT + name: value for name, value in load_file(source / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    kwargs = json.loads((source / "processor_config.json").read_text())["processor_kwargs"]
    statistics = json.loads((source / "statistics.json").read_text())[TAG]
    modality = kwargs["modality_configs"][TAG]
    cameras = modality["video"]["modality_keys"]
    said = {
        "raw_stats": statistics,
        "modality_config": modality,
        "use_percentiles": kwargs["use_percentiles"],
    }
    pack = {
        "state_horizon": 1, "action_horizon": 11, "valid_action_horizon": 9, "video_horizon": 1,
        "max_state_dim": 29, "max_action_dim": 23, "language_key": "task", "formalize_language": True,
        "embodiment_tag": TAG, "embodiment_mapping": {TAG: 3}, "normalize_min_max": True,
        "clip_outliers": True, "video_modality_keys": cameras, **said,
    }  # fmt: skip
    images = (
        "image_crop_size",
        "image_target_size",
        "shortest_image_edge",
        "crop_fraction",
        "use_albumentations",
    )
    encode = {name: kwargs[name] for name in (*images, "letter_box_transform", "model_name")} | {
        "device": "cpu"
    }
    decode = {"env_action_dim": 17, "use_relative_action": True, "action_decode_transform": None, **said}
    steps = {
        "policy_preprocessor": {"groot_n1_7_pack_inputs_v1": pack, "groot_n1_7_vlm_encode_v1": encode},
        "policy_postprocessor": {"groot_n1_7_action_decode_v1": decode},
    }
    for name, described in steps.items():
        listed = [{"registry_name": step, "config": config} for step, config in described.items()]
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": listed}))
    features = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 72, 96]} for name in cameras}
    config = {"type": "groot", "input_features": features, "embodiment_tag": TAG, "chunk_size": 11}
    (folder / "config.json").write_text(json.dumps(config))


def _nvidias_1_5(folder: Path) -> None:
    """N1.5 as NVIDIA saves it, under the embedding's own name."""
    source = DATA / "groot_n1_5"
    shutil.copytree(source / "checkpoint", folder)
    weights = load_file(source / "checkpoint_lerobot" / "model.safetensors")
    weights = {name.removeprefix(ROOT): value for name, value in weights.items()}
    language = "backbone.eagle_model.language_model."
    weights[f"{language}model.embed_tokens.weight"] = weights.pop(f"{language}lm_head.weight")
    save_file(weights, folder / "model.safetensors")


def _edit(file: Path, fields: dict[str, Any]) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
