"""A recorded run of the OpenVLA reference implementation; see oracle.py for where recordings come from.

The reference ran one image and one prompt: the towers' features, what the projector makes of them, and greedy
decoding with the scores of every step.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from oracle import DTYPES, FOLDER, read_arrays
from torch import Tensor

from vla_accel_ros.models.checkpoints.formats import Options
from vla_accel_ros.models.checkpoints.shards import read_headers
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.openvla.checkpoint import load_openvla_model
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.openvla.policy import ActionStats, ActionTokens


@dataclass(frozen=True)
class OpenVLAOracle:
    """spec: the JSON; arrays: the recorded numbers, bfloat16 as float32; model: ours with its weights."""

    name: str
    spec: dict[str, Any]
    arrays: dict[str, Tensor]
    config: OpenVLAConfig
    model: OpenVLA

    @classmethod
    def load(cls, name: str, device: str = "cpu", dtype: str = "") -> OpenVLAOracle:
        """dtype: of the network; the recording's own unless it is named."""
        spec = json.loads((FOLDER / f"{name}.json").read_text())
        arrays = read_arrays(name, device)
        config = _config(spec, arrays)
        file = FOLDER / f"{name}.safetensors"
        model = load_openvla_model(
            read_headers(file), config, file, Options(torch.device(device), DTYPES[dtype or spec["dtype"]])
        )
        return cls(name, spec, arrays, config, model)

    def __getitem__(self, key: str) -> Tensor:
        return self.arrays[key]

    @property
    def exact(self) -> bool:
        """Whether float32 agreement can be asked for."""
        return self.spec["dtype"] == "float32"

    @property
    def stats(self) -> ActionStats:
        """The recorded statistics."""
        low, high, mask = (self[key].cpu().numpy() for key in ("q01", "q99", "mask"))
        return ActionStats(low, high, mask)

    @property
    def action_tokens(self) -> ActionTokens:
        """The recorded vocabulary."""
        return ActionTokens(self.config.action_vocab, self.config.bins)

    def prefix(self) -> Tensor:
        """Embeddings [1, P + T, W] of the recorded image and prompt."""
        return self.model.embed(self.image_tokens(), self["input_ids"])

    @cached_property
    def in_float64(self) -> OpenVLAOracle:
        """The same weights, computed with as good as no rounding."""
        return replace(self, model=copy.deepcopy(self.model).double())

    def features(self) -> Tensor:
        """What the towers make of the recorded image, [1, P, features]."""
        return self.model.vision_backbone(self["pixel_values"])

    def image_tokens(self) -> Tensor:
        """[1, P, W]"""
        return self.model.encode(self["pixel_values"])

    def scores(self, how: str = "in one pass") -> Tensor:
        """[n, vocab], of each recorded token; or computed "token by token"."""
        tokens = self["generated"]
        words = self.model.embed_tokens(tokens[None, :-1])
        if how == "in one pass":
            hidden, _ = self.model.prefix(torch.cat((self.prefix(), words), dim=1))
            return self.model.logits(hidden[0, -len(tokens) :])
        hidden, past = self.model.prefix(self.prefix())
        rows, tail = [hidden[:, -1:]], None
        for word in words.split(1, dim=1):
            hidden, new = self.model.extend(word, past, tail=tail)
            tail = new if tail is None else KV(*(torch.cat(pair, dim=3) for pair in zip(tail, new)))
            rows.append(hidden)
        return self.model.logits(torch.cat(rows, dim=1)[0])


def _config(spec: dict[str, Any], arrays: dict[str, Tensor]) -> OpenVLAConfig:
    shapes = {name: shape for name, (shape, _) in spec["keys"].items()}

    def tower(name: str, sizes: dict[str, int]) -> VisionConfig:
        root = f"vision_backbone.{name}."
        return VisionConfig(
            width=sizes["embed_dim"],
            depth=sizes["depth"],
            mlp=shapes[root + "blocks.0.mlp.fc1.weight"][0],
            heads=sizes["num_heads"],
            image_size=spec["image_size"],
            patch=shapes[root + "patch_embed.proj.weight"][2],
        )

    attention = "language_model.model.layers.0.self_attn."
    head_dim = shapes[attention + "q_proj.weight"][0] // spec["heads"]
    return OpenVLAConfig(
        dino=tower("featurizer", spec["dino"]),
        siglip=tower("fused_featurizer", spec["siglip"]),
        registers=shapes["vision_backbone.featurizer.reg_token"][1],
        prefix=LlamaConfig(
            width=spec["hidden"],
            depth=spec["layers"],
            mlp=spec["mlp"],
            heads=spec["heads"],
            kv_heads=shapes[attention + "k_proj.weight"][0] // head_dim,
            head_dim=head_dim,
        ),
        vocab=shapes["language_model.lm_head.weight"][0],
        action_vocab=spec["detok_vocab"],
        bins=len(arrays["bin_centers"]) + 1,
        space_token=None,
        max_prompt=arrays["input_ids"].shape[1],
    )
