"""Read OpenVLA's published folders.

Layout: `config.json` (sizes, and under norm_stats the statistics of every training data set),
`model.safetensors` or shards with their index, `tokenizer.json` or `tokenizer.model`, and optionally
`preprocessor_config.json` and `dataset_statistics.json`. Code that publishers put beside the weights is never
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    filled,
    fitting,
    read_sizes,
    renamed,
)
from vla_accel_ros.models.checkpoints.shards import Stored, inside
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA, is_unused
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.openvla.sizes import check_settings, infer_openvla
from vla_accel_ros.models.openvla.stats import read_action_stats, read_pixel_norm, statistics_names
from vla_accel_ros.models.text.tokenizer import load_tokenizer

OFT_PARTS = (
    "action_head*",
    "proprio_projector*",
    "noisy_action_projector*",
    "vision_backbone--*",
    "lora_adapter*",
)
"""Files and folders that OpenVLA-OFT's training leaves beside weights with OpenVLA's names."""
CODE, OFT_CODE = "modeling_prismatic.py", b"proprio_projector"
"""The model's code, which the training copies into the folder, and a parameter that only OpenVLA-OFT's has:
it tells one whose other parts were not copied."""


def holds(contents: Contents) -> bool:
    """Return whether config.json names an OpenVLA, or the tensors have its names."""
    is_openvla = contents.config.get("model_type") == "openvla" or contents.kind == "openvla"
    return is_openvla or "vision_backbone.featurizer.pos_embed" in contents.tensors


def load(contents: Contents, options: Options) -> OpenVLAPolicy:
    """See checkpoint.load_policy. All parameters have the same dtype, as in the reference."""
    folder, config = contents.folder, read_openvla_config(contents)
    tokenizer = load_tokenizer(folder, config.vocab)
    stats, pixels = read_action_stats(folder, options.statistics), read_pixel_norm(folder)
    mask = options.actions(None, stats.size, str(folder))
    model = options.network(
        config, str(folder), lambda: load_openvla_model(contents.table, config, contents.weights, options)
    )
    return OpenVLAPolicy(model, tokenizer, stats, pixels, mask)


def openvla_names(model: Any, table: Mapping[str, Stored], where: Path) -> dict[str, str]:
    """See formats.fitting; also of an OpenVLA-OFT, which has no language head."""

    def unused(name: str) -> bool:
        return name == "language_model.lm_head.weight" or is_unused(name, model.config)

    return fitting(model, table, where, unused=unused)


def load_openvla_model(
    table: Mapping[str, Stored], config: OpenVLAConfig, where: Path, options: Options
) -> OpenVLA:
    """Return a model of these sizes with the weights of `table`, see formats.filled."""
    model = empty(OpenVLA, config, options.dtype)
    return filled(model, table, openvla_names(model, table, where), where, options, fused_parts(model))


def read_openvla_config(contents: Contents) -> OpenVLAConfig:
    """Return the sizes: "vla_accel_ros" of `config.json` if present, else inferred from its other fields and
    the shapes. Raises ValueError if the folder is of another kind or a setting is unknown."""
    parts = [part for pattern in OFT_PARTS for part in sorted(contents.folder.glob(pattern))]
    code = contents.folder / CODE
    if code.is_file() and OFT_CODE in inside(contents.folder, code).read_bytes():
        parts.append(code)
    for part in parts:
        raise ValueError(
            f"{part} belongs to an OpenVLA-OFT, whose action head is not here, and the tokens of its "
            "language stack mean nothing; copy the head (action_head--*.pt), too."
        )
    return read_sizes(contents, OpenVLAConfig.from_json, infer_openvla, check_settings)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    folder, config, missing = contents.folder, read_openvla_config(contents), Missing()
    stats = missing.read(read_action_stats, folder, statistics)
    missing.read(read_pixel_norm, folder)
    missing.read(load_tokenizer, folder, config.vocab)
    missing.read(lambda: openvla_names(empty(OpenVLA, config), contents.table, contents.weights))
    notes = ["the data set defines what an action means: in most, the hand's displacement, and the gripper"]
    for index in () if stats is None else np.flatnonzero(~stats.mask):
        low, high = stats.range()[:, index]
        notes.append(f"action {index} is not normalised: a gripper's, {low:g} to {high:g} in training")
    return Description(
        folder,
        "OpenVLA, safetensors",
        config,
        contents.tensors,
        actions=np.zeros((2, 0)) if stats is None else stats.range(),
        normalisation="none" if stats is None else "quantiles 1 and 99 % of the actions",
        twist=True,
        any_camera=True,
        statistics=statistics_names(folder),
        notes=tuple(notes),
        missing=tuple(missing.sentences),
    )


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with the published names."""
    model = empty(OpenVLA, read_openvla_config(contents))
    names = openvla_names(model, contents.table, contents.weights)
    return renamed(contents.table, names, fused_parts(model))


FORMAT = Format("OpenVLA", holds, describe, load, weights)
