"""Converted folders with a fold beside the weights: what is in it, what would be computed, changes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.pi.folded import Expert
from vla_accel_ros.models.pi.folding import fold_expert
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.stored_fold import FOLDED, StoredFold

STEPS = 3
KINDS = ("pi0", "pi05")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def model_of(folder: Path, dtype: torch.dtype = torch.float32) -> Pi:
    return load_policy(folder, dtype=dtype).model


def computed(model: Pi, steps: int = STEPS, rule: str = "openpi") -> Expert:
    """As if there were no file."""
    fold, model.fold = model.fold, None
    expert = fold_expert(model, steps, rule)
    model.fold = fold
    return expert


def tensors(expert: object) -> list[Tensor]:
    """Every tensor, wherever it is."""
    if isinstance(expert, Tensor):
        return [expert]
    if is_dataclass(expert):
        return [tensor for field in fields(expert) for tensor in tensors(getattr(expert, field.name))]
    return [tensor for part in expert for tensor in tensors(part)] if isinstance(expert, tuple) else []


def equal(one: Expert, other: Expert) -> bool:
    mine, theirs = tensors(one), tensors(other)
    return len(mine) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)
    )


def describe_fold(folder: Path) -> StoredFold:
    config = describe(folder).config
    assert isinstance(config, PiConfig)
    fold = StoredFold.find(folder, config)
    assert fold is not None
    return fold


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the fold's numbers and keep its header's words."""
    file = folder / FOLDED
    with safe_open(str(file), framework="pt") as opened:
        said = opened.metadata()
    found = load_file(file)
    change(found)
    save_file(found, file, said)
