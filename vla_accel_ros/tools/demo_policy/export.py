"""Writes trained weights as a checkpoint folder that `models.checkpoints.checkpoint.load_policy` reads like
any other."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.tools.demo_policy import vocabulary
from vla_accel_ros.tools.demo_policy.recipe import Recipe
from vla_accel_ros.tools.demo_policy.samples import Statistics


def export(
    folder: Path, weights: dict[str, Tensor], config: PiConfig, statistics: Statistics, recipe: Recipe
) -> None:
    """model.safetensors (openpi keys), config.json, assets/demo/norm_stats.json, tokenizer.json."""
    (folder / "assets" / "demo").mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().float().cpu().contiguous().clone() for name, weight in weights.items()}
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial)
    partial.rename(folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({"vla_accel_ros": config.to_json(), "training": recipe.as_dict()}, indent=1) + "\n"
    )
    stats = {"norm_stats": {"state": statistics.state, "actions": statistics.actions}}
    (folder / "assets" / "demo" / "norm_stats.json").write_text(json.dumps(stats, indent=1) + "\n")
    vocabulary.save(folder)
