"""A SmolVLA of 330 k random parameters that lerobot made, saved and ran: the folder test/data/smolvla.

It is a folder as lerobot saves it, with what its unmodified code computed for two observations beside it
(recording.npz; recording.json says by which versions): the first with both cameras, the second with one. The
head sizes are smaller than in any published model, which the folder cannot say: they are in recording.json.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.checkpoints.formats import Contents, Options
from vla_accel_ros.models.checkpoints.shards import read_table
from vla_accel_ros.models.smolvla.checkpoint import load_smolvla_model
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.smolvla.sizes import infer_smolvla
from vla_accel_ros.types import Observation

FOLDER = Path(__file__).parent / "data" / "smolvla"
SPEC: dict[str, Any] = json.loads((FOLDER / "recording.json").read_text())
CASES = range(len(SPEC["tasks"]))


def make_smolvla_config() -> SmolVLAConfig:
    """The sizes of the recorded model."""
    shapes = {name: stored.shape for name, stored in read_table(FOLDER).items()}
    data = json.loads((FOLDER / "config.json").read_text())
    return infer_smolvla(shapes, data, SPEC["head_dim"], vision_head_dim=8)


def make_smolvla(device: str = "cpu", dtype: torch.dtype = torch.float32) -> SmolVLA:
    """The recorded model."""
    options = Options(torch.device(device), dtype)
    return load_smolvla_model(Contents.of(FOLDER), make_smolvla_config(), options)


def make_smolvla_folder(folder: Path, **changes: Any) -> Path:
    """A copy of the recorded folder whose config.json also has our sizes; `changes` are fields of it."""
    shutil.copytree(FOLDER, folder)
    data = json.loads((folder / "config.json").read_text())
    data = {**data, "vla_accel_ros": make_smolvla_config().to_json(), **changes}
    (folder / "config.json").write_text(json.dumps(data))
    return folder


@dataclass(frozen=True)
class Case:
    """What lerobot was given and what it computed, of one observation."""

    index: int
    device: str = "cpu"

    @cached_property
    def arrays(self) -> dict[str, Tensor]:
        start = f"{self.index}/"
        with np.load(FOLDER / "recording.npz") as file:
            names = [name for name in file.files if name.startswith(start)]
            return {name.removeprefix(start): torch.from_numpy(file[name]).to(self.device) for name in names}

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def cameras(self) -> list[str]:
        return list(SPEC["cameras"][self.index])

    @property
    def images(self) -> Tensor:
        """[V, 3, S, S], as the network took them."""
        return torch.stack([self[f"image_{name}"] for name in self.cameras])

    @property
    def observation(self) -> Observation:
        """The same, as a robot would bring it."""
        return Observation(
            images={name: self[f"raw_{name}"].cpu().numpy() for name in self.cameras},
            state=self["state"].cpu().numpy(),
            instruction=SPEC["tasks"][self.index],
            stamp_ns=1_000_000_000,
        )

    def embeddings(self, model: SmolVLA) -> Tensor:
        """[1, T, W]"""
        state = torch.zeros(1, model.config.state_dim, device=self.device)
        state[0, : len(self["state_normalized"])] = self["state_normalized"]
        images = model.encode(self.images).flatten(0, 1)[None]
        return model.embed(images, self["tokens"][None], state)
