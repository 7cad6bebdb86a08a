"""Checkpoint folders for tests: files of theirs are changed in place, and loading them is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy


def edit_weights(file: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a safetensors file."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def edit_torch(file: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a file that torch saved."""
    tensors = torch.load(file, weights_only=True)
    change(tensors)
    torch.save(tensors, file)


def edit_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a JSON file says."""
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def refused(folder: Path, *parts: str, **arguments: Any) -> None:
    """load_policy raises one sentence on one line that has all the parts."""
    with pytest.raises(ValueError) as caught:
        load_policy(folder, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def same_weights(first: Any, second: Any) -> bool:
    ours, others = first.model.state_dict(), second.model.state_dict()
    return ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)
