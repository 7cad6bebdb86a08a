"""A recorded run of OpenVLA-OFT's own code: a folder with oracle.json, oracle.npz and checkpoint/.

The towers are tiny, which no published config.json can say, so their sizes are added to a copy of it.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle import DTYPES, FOLDER, recorded
from safetensors import safe_open
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.openvla_oft.config import PLATFORMS, OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.policy import OpenVLAOFTPolicy
from vla_accel_ros.types import Observation

FAMILY = "OpenVLA-OFT"


def oft_names() -> list[str]:
    """Every recording in the folder, with FiLM and without."""
    return [folder.name for folder in recorded(FAMILY)]


def sizes_of(spec: dict[str, Any], vocab: int = 32064) -> OpenVLAOFTConfig:
    """The recorded network's."""
    sizes, towers = spec["sizes"], [*spec["sizes"]["timm_overrides"].values()]
    _, bounds, images = PLATFORMS[spec["platform"]]
    dino, siglip = (
        VisionConfig(
            width=tower["embed_dim"],
            depth=tower["depth"],
            mlp=spec["mlps"][index],
            heads=tower["num_heads"],
            image_size=sizes["image"],
            patch=14,
        )
        for index, tower in enumerate(towers)
    )
    width, heads = sizes["hidden"], sizes["heads"]
    return OpenVLAOFTConfig(
        dino=dino,
        siglip=siglip,
        registers=4,
        prefix=LlamaConfig(width, sizes["layers"], sizes["mlp"], heads, heads, width // heads),
        vocab=vocab,
        action_vocab=vocab - 64,
        image_names=images[: sizes["cams"]],
        horizon=sizes["NUM_ACTIONS_CHUNK"],
        action_dim=sizes["ACTION_DIM"],
        state_dim=sizes["PROPRIO_DIM"],
        bounds=bounds,
    )


def folder_with_sizes(name: str, folder: Path) -> Path:
    """A copy of the recorded checkpoint whose config.json says the sizes."""
    source = FOLDER / name
    spec = json.loads((source / "oracle.json").read_text())
    shutil.copytree(source / "checkpoint", folder, copy_function=shutil.copyfile)
    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        spec["mlps"] = [
            file.get_slice(f"vision_backbone.{tower}.blocks.0.mlp.fc1.weight").get_shape()[0]
            for tower in ("featurizer", "fused_featurizer")
        ]
        vocab = file.get_slice("language_model.model.embed_tokens.weight").get_shape()[0]
    config = json.loads((folder / "config.json").read_text())
    config["vla_accel_ros"] = sizes_of(spec, vocab).to_json()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@dataclass(frozen=True)
class OFTOracle:
    """spec: the JSON; arrays: the recorded numbers; policy: ours with its weights."""

    name: str
    spec: dict[str, Any]
    arrays: dict[str, np.ndarray]
    policy: OpenVLAOFTPolicy

    exact = True

    @classmethod
    def load(cls, name: str, device: str = "cpu", dtype: str = "float32") -> OFTOracle:
        with tempfile.TemporaryDirectory() as folder:
            path = folder_with_sizes(name, Path(folder) / "checkpoint")
            policy = load_policy(path, device, DTYPES[dtype])
        assert isinstance(policy, OpenVLAOFTPolicy)
        with np.load(FOLDER / name / "oracle.npz") as file:
            arrays = {key: file[key] for key in file.files}
        return cls(name, json.loads((FOLDER / name / "oracle.json").read_text()), arrays, policy)

    def __getitem__(self, key: str) -> Tensor:
        return torch.from_numpy(self.arrays[key]).to(self.policy.device)

    @cached_property
    def in_float64(self) -> OFTOracle:
        """The same weights, computed with as good as no rounding."""
        return replace(self, policy=replace(self.policy, model=copy.deepcopy(self.policy.model).double()))

    @property
    def observation(self) -> Observation:
        """What the reference was given."""
        return self.observation_of("")

    def observation_of(self, frame: str) -> Observation:
        """The same of a frame: "" or "second_"."""
        names = self.policy.config.image_names
        images = {name: self.arrays[f"{frame}image_{index}"] for index, name in enumerate(names)}
        return Observation(images, self.arrays[f"{frame}state"], self.spec["instruction"], 1)

    def words(self) -> Tensor:
        return torch.tensor(self.policy.prompt(self.spec["instruction"]), device=self.policy.device)

    def image_tokens(self) -> Tensor:
        """[1, n, W]"""
        size = self.policy.image_size
        pixels = self["pixel_values"][0].view(-1, 6, size, size)
        film = self.policy.text_encode(self.words()) if self.policy.config.film else {}
        return self.policy.encode(pixels.to(self.policy.model.dtype), **film)["seen"][None]

    def hidden(self) -> Tensor:
        """[1, T, W], after the final norm."""
        model = self.policy.model
        return model.hidden(model.embed(self.image_tokens()[0], self.words(), self._state()))

    def raw(self) -> Tensor:
        """[1, H, A], normalised."""
        return self.policy.forward(self.image_tokens()[0], self.words(), self._state())["actions"][None]

    def _state(self) -> Tensor | None:
        return self["state_normalised"][0] if self.policy.config.state_dim else None
