"""A recorded run of a reference implementation: NAME.json (sizes), NAME.npz (numbers), NAME.safetensors
(weights).

The folder is named by the environment variable VLA_ORACLES; without it, it is the one shipped with the tests.
Every pi0, pi05 or openvla recording in it is found, whatever its sizes, seed and dtype; files of other kinds
are left alone. What is here serves pi0 and pi05; openvla's is in openvla_oracle.py.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.checkpoints.formats import Options
from vla_accel_ros.models.checkpoints.shards import read_headers
from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import load_pi_model
from vla_accel_ros.models.policy import Policy

if TYPE_CHECKING:
    from typing_extensions import Self

FOLDER = Path(os.environ.get("VLA_ORACLES") or Path(__file__).parent.parent / "data" / "oracles")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def fixture_names(*kinds: str) -> list[str]:
    """Every recording of these kinds in the folder."""
    return [file.stem for file in sorted(FOLDER.glob("*.json")) if _kind(file) in kinds]


def recorded(*families: str) -> list[Path]:
    """The folders of all recordings of these families."""
    files = sorted(FOLDER.glob("*/oracle.json"))
    return [file.parent for file in files if json.loads(file.read_text()).get("family") in families]


def read_arrays(name: str, device: str = "cpu") -> dict[str, Tensor]:
    """The recorded numbers, bfloat16 as float32."""
    return _read(FOLDER / f"{name}.npz", device)


def read_folder_arrays(folder: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The recorded numbers of a folder with checkpoints, bfloat16 as float32."""
    return _read(folder / "oracle.npz", device)


def _read(path: Path, device: str) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {key: _tensor(file[key]).to(device) for key in file.files}


OfFamily = TypeVar("OfFamily", bound=Policy)


@dataclass(frozen=True)
class Recording(Generic[OfFamily]):
    """Of a folder with oracle.json, oracle.npz and checkpoints. name: of the checkpoint; spec: the JSON;
    arrays: the recorded numbers; policy: ours with its weights."""

    name: str
    spec: dict[str, Any]
    arrays: dict[str, Tensor]
    policy: OfFamily

    def __getitem__(self, key: str) -> Tensor:
        return self.arrays[key]

    @property
    def exact(self) -> bool:
        """Whether float32 agreement can be asked for."""
        return self.policy.kv_dtype in (torch.float32, torch.float64)

    @cached_property
    def in_float64(self) -> Self:
        """The same weights, computed with as good as no rounding."""
        return replace(self, policy=replace(self.policy, model=copy.deepcopy(self.policy.model).double()))


@dataclass(frozen=True)
class Oracle:
    """spec: the JSON; arrays: the recorded numbers, bfloat16 as float32; model: ours with its weights."""

    name: str
    spec: dict[str, Any]
    arrays: dict[str, Tensor]
    config: PiConfig
    model: Pi

    @classmethod
    def load(cls, name: str, device: str = "cpu", dtype: str = "") -> Oracle:
        """dtype: of the network; the recording's own unless it is named."""
        spec = json.loads((FOLDER / f"{name}.json").read_text())
        arrays = read_arrays(name, device)
        config = _config(spec, arrays)
        file = FOLDER / f"{name}.safetensors"
        model = load_pi_model(
            read_headers(file), config, file, Options(torch.device(device), DTYPES[dtype or spec["dtype"]])
        )
        return cls(name, spec, arrays, config, model)

    def __getitem__(self, key: str) -> Tensor:
        return self.arrays[key]

    @property
    def batch(self) -> int:
        return len(self["tokens"])

    @property
    def exact(self) -> bool:
        """Whether float32 agreement can be asked for."""
        return self.spec["dtype"] == "float32"

    def images(self) -> Tensor:
        """[B, V, 3, S, S]"""
        return torch.stack([self[f"image_{name}"] for name in self.config.image_names], dim=1)

    def guided(self) -> list[tuple[str, str]]:
        """The recorded (form, schedule) pairs, form "lerobot" or "vjp"."""
        prefix = "rtc_actions_"
        keys = [key[len(prefix) :] for key in self.arrays if key.startswith(prefix)]
        return [(form, schedule) for form, _, schedule in (key.partition("_") for key in keys)]


def _kind(file: Path) -> str | None:
    """What a JSON file says it is; openvla's recordings say it by the towers they describe."""
    spec = json.loads(file.read_text())
    if not isinstance(spec, dict):
        return None
    return spec.get("kind", "openvla" if {"dino", "siglip"} <= set(spec) else None)


def _tensor(array: np.ndarray) -> Tensor:
    """NumPy has no bfloat16: it is saved as two raw bytes, or as uint16."""
    if array.dtype == np.uint16 or array.dtype.kind == "V":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(array)


def _config(spec: dict[str, Any], arrays: dict[str, Tensor]) -> PiConfig:
    shapes = {name: shape for name, (shape, _) in spec["keys"].items()}
    head_dim = spec["head_dim"]
    kv_heads = (
        shapes["paligemma_with_expert.gemma_expert.model.layers.0.self_attn.k_proj.weight"][0] // head_dim
    )
    cameras = [
        key[len("image_") :] for key in arrays if key.startswith("image_") and "image_mask_" not in key
    ]

    def gemma(width: int, mlp: int) -> GemmaConfig:
        return GemmaConfig(width, spec["depth"], mlp, spec["heads"], kv_heads, head_dim)

    return PiConfig(
        kind=spec["kind"],
        vision=VisionConfig(
            width=spec["v_width"],
            depth=spec["v_depth"],
            mlp=spec["v_mlp"],
            heads=spec["v_heads"],
            image_size=spec["image_size"],
            patch=spec["patch"],
        ),
        prefix=gemma(spec["width"], spec["mlp"]),
        expert=gemma(spec["ewidth"], spec["emlp"]),
        vocab=spec["vocab"],
        action_dim=spec["action_dim"],
        state_dim=spec["action_dim"],
        horizon=spec["horizon"],
        max_prompt=spec["max_token_len"],
        image_names=tuple(cameras),
    )
