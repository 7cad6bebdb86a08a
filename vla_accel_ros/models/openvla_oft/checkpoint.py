"""Read OpenVLA-OFT's published folders: OpenVLA's files, and one more for each further part.

`action_head--STEP_checkpoint.pt` and `proprio_projector--STEP_checkpoint.pt` are files of torch.save, read as
data (checkpoints/torch_file.py). `vision_backbone--STEP_checkpoint.pt`, of a network with FiLM, replaces the
towers; its adapters, which training left beside the weights, are merged in float32. A folder that
`vla convert` wrote has everything in safetensors. Not read: heads that denoise (`noisy_action_projector--*`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_accel_ros.models.checkpoints.description import NOTHING, Description, Group, Missing
from vla_accel_ros.models.checkpoints.fields import OURS
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    check_unanswered,
    filled,
    read_sizes,
    renamed,
)
from vla_accel_ros.models.checkpoints.shards import LowRank, Stored, inside, named, read_headers
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.inferred import Shapes
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.openvla.checkpoint import openvla_names
from vla_accel_ros.models.openvla.sizes import DINO, check_settings, infer_openvla
from vla_accel_ros.models.openvla.stats import chosen_statistics, read_ends, read_pixel_norm, statistics_names
from vla_accel_ros.models.openvla_oft.config import PLATFORMS, QUANTILES, OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.models.openvla_oft.policy import OpenVLAOFTPolicy, unit_range
from vla_accel_ros.models.processing.ranges import Range, trained_range
from vla_accel_ros.models.text.tokenizer import load_tokenizer

HEAD, PROPRIO, TOWERS = "action_head", "proprio_projector", "vision_backbone"
DENOISING = "noisy_action_projector*"
MOST_ALPHA = 16
"""Adapters of rank r were trained with the factor min(r, MOST_ALPHA) / r."""
PARALLEL = "module."
"""Prefix of the names in files of a training on several GPUs."""


HANDS = {
    (8, 7): (Group("hand", 6, {"preset": "libero"}), Group("gripper", 1, pair=True)),
    (7, 7): (Group("hand", 6, {"preset": "bridge"}), Group("gripper", 1)),
}
"""What its data sets have, by the sizes of states and actions: LIBERO's, and Bridge's."""


def holds(contents: Contents) -> bool:
    """Return whether the folder is an OpenVLA with an action head."""
    is_openvla = contents.config.get("model_type") == "openvla" or contents.kind == OpenVLAOFTConfig.KIND
    head = any(contents.folder.glob(f"{HEAD}--*.pt")) or f"{HEAD}.model.fc1.weight" in contents.tensors
    return is_openvla and head


def read_table(contents: Contents) -> dict[str, Stored]:
    """Return every tensor by our names. Raises ValueError if a part is there twice, or is not read here."""
    folder, table = contents.folder, dict(contents.table)
    for file in folder.glob(DENOISING):
        raise ValueError(f"{file} is of a head that denoises, which is not computed here; give one without.")
    for part in (HEAD, PROPRIO, TOWERS):
        files = sorted(folder.glob(f"{part}--*.pt"))
        if len(files) > 1:
            names = [file.name for file in files]
            raise ValueError(f"{folder} has {names}; keep the one of the weights' step.")
        for file in files:
            tensors = named(read_headers(inside(folder, file)), lambda name: name.removeprefix(PARALLEL))
            if part == TOWERS:
                table = {name: stored for name, stored in table.items() if not name.startswith(TOWERS)}
                table |= _merged(tensors)
            else:
                table |= {f"{part}.{name}": stored for name, stored in tensors.items()}
    return table


def _merged(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The towers' tensors by OpenVLA's names, with their adapters. Factors that fit nothing stay, so that
    `openvla_names` lists them."""
    table = dict(tensors)
    for name, stored in tensors.items():
        module, _, leaf = name.rpartition(".base_layer.")
        a, b = (tensors.get(f"{module}.lora_{factor}.default.weight") for factor in "AB")
        if leaf != "weight" or a is None or b is None or not a.shape or not a.part or not b.part:
            continue
        rank = a.shape[0]
        if b.shape[:2] == (stored.shape[0], rank) and a.shape[1:] == stored.shape[1:]:
            added = LowRank(stored.file, a.part.tensor, b.part.tensor, min(rank, MOST_ALPHA) / rank)
            table[name] = replace(stored, dtype="F32", added=added)
            del table[f"{module}.lora_A.default.weight"], table[f"{module}.lora_B.default.weight"]
    return {name.replace(".base_layer.", ".").replace(".block.", "."): table[name] for name in table}


def read_config(contents: Contents, statistics: str | None = None) -> tuple[OpenVLAOFTConfig, str]:
    """Return the sizes, and a sentence if some were taken as usual. Raises ValueError if nobody says what no
    file says, or if it is said twice."""
    table, word, assumed = read_table(contents), contents.trained_as, ""
    if OURS in contents.config:
        check_unanswered(contents)
    else:
        word = word or _platform(contents.folder, statistics)
        if word not in PLATFORMS:
            raise ValueError(
                f"{contents.folder}: no file of an OpenVLA-OFT says how many actions a chunk has and by what "
                f"they were normalised; trained_as is {contents.trained_as!r}, give one of {list(PLATFORMS)}."
            )
        if not contents.trained_as:
            assumed = f"chunks of {PLATFORMS[word][0]} actions as of {word}, by the data set's name"

    def infer(shapes: Shapes, data: Mapping[str, Any]) -> OpenVLAOFTConfig:
        return _infer({name: stored.shape for name, stored in table.items()}, data, word)

    config = read_sizes(contents, OpenVLAOFTConfig.from_json, infer, check_settings)
    assert isinstance(config, OpenVLAOFTConfig)
    return replace(config, film=config.film or f"{DINO}blocks.0.scale.weight" in table), assumed


def _platform(folder: Path, statistics: str | None) -> str:
    """The platform whose word is in the data set's name; empty unless it is one."""
    names = [statistics] if statistics else list(statistics_names(folder))
    words = {word for word in PLATFORMS for name in names if word in name.lower()}
    return words.pop() if len(words) == 1 else ""


def _infer(shapes: Shapes, data: Mapping[str, Any], word: str) -> OpenVLAOFTConfig:
    horizon, bounds, images = PLATFORMS[word]
    width = shapes.get(f"{PROPRIO}.fc1.weight", (0, 0))
    head = shapes.get(f"{HEAD}.model.fc2.weight")
    if head is None or len(head) != 2 or len(width) != 2:
        raise ValueError(f"{HEAD}.model.fc2.weight is {head}; copy the file of the action head again.")
    return OpenVLAOFTConfig.of(
        infer_openvla(shapes, data),
        image_names=images,
        horizon=horizon,
        action_dim=head[0],
        state_dim=width[1],
        bounds=bounds,
    )


def load(contents: Contents, options: Options) -> OpenVLAOFTPolicy:
    """See checkpoint.load_policy. All parameters have the same dtype, as in the reference."""
    folder, (config, _) = contents.folder, read_config(contents, options.statistics)
    tokenizer, pixels = load_tokenizer(folder, config.vocab), read_pixel_norm(folder)
    actions, states = read_bounds(folder, config, options.statistics)
    mask = options.actions(None, actions.size, str(folder))

    def read_weights() -> OpenVLAOFT:
        table, where = read_table(contents), contents.weights
        network = empty(OpenVLAOFT, config, options.dtype)
        names = openvla_names(network, table, where)
        return filled(network, table, names, where, options, fused_parts(network))

    model = options.network(config, str(folder), read_weights)
    return OpenVLAOFTPolicy(model, tokenizer, actions, states, pixels, mask)


def read_bounds(folder: Path, config: OpenVLAOFTConfig, dataset: str | None) -> tuple[Range, Range | None]:
    """Return the bounds of actions and, if the network takes one, of the state. Raises ValueError if there
    are none, or several and no `dataset`."""
    where, data = chosen_statistics(folder, dataset)

    def read(field: str) -> Range:
        return unit_range(*read_ends(data.get(field), config.bounds.split(), f"{where}.{field}"))

    return read("action"), read("proprio") if config.state_dim else None


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    folder, (config, assumed), missing = contents.folder, read_config(contents, statistics), Missing()
    table = read_table(contents)
    bounds = missing.read(read_bounds, folder, config, statistics)
    missing.read(read_pixel_norm, folder)
    missing.read(load_tokenizer, folder, config.vocab)
    missing.read(lambda: openvla_names(empty(OpenVLAOFT, config), table, contents.weights))
    actions, states = bounds or (None, None)
    hand = config.bounds == QUANTILES
    return Description(
        folder,
        "OpenVLA-OFT, safetensors and torch files",
        config,
        table,
        state=NOTHING if states is None else trained_range(states),
        actions=NOTHING if actions is None else trained_range(actions),
        normalisation="quantiles 1 and 99 %" if hand else "least and greatest",
        twist=hand,
        groups=HANDS.get((config.state_dim, config.action_dim), ()) if hand else (),
        statistics=statistics_names(folder),
        notes=("pictures are decoded otherwise than in training, by up to 7 levels of 255",),
        assumed=assumed,
        missing=tuple(missing.sentences),
    )


def weights(contents: Contents) -> Weights:
    """See formats.Weights."""
    config, _ = read_config(contents)
    table, model = read_table(contents), empty(OpenVLAOFT, config)
    return renamed(table, openvla_names(model, table, contents.weights), fused_parts(model))


FORMAT = Format("OpenVLA-OFT", holds, describe, load, weights, asks=True)
