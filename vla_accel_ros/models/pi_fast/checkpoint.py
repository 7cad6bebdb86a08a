"""Read folders in which lerobot saved a pi0-FAST.

Layout: `config.json` (type pi0_fast), `model.safetensors`, the two processor files with the statistics that
they name, PaliGemma's tokenizer, and the tokenizer of actions in `fast_tokenizer/`, or where config.json's
action_tokenizer_name says if that is a folder. lerobot downloads both tokenizers from the hub: copy them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.fields import LEROBOT as LEROBOT_FIELDS
from vla_accel_ros.models.checkpoints.fields import LEROBOT_FIXED, OURS, check_fields, part, words
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    action_size,
    filled,
    fitting,
    read_sizes,
    renamed,
)
from vla_accel_ros.models.checkpoints.lerobot import lerobot_cameras, lerobot_description
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.inferred import Shapes, axes, siglip, stack, tensors_of, whole
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.pi.checkpoint import check_training, known_training, openpi_description
from vla_accel_ros.models.pi.infer_config import PREFIX, VISION, VISION_HEAD_DIM
from vla_accel_ros.models.pi.training import DELTA
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.pi_fast.fast import FastTokenizer
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.pi_fast.policy import SKIPPED, PiFastPolicy
from vla_accel_ros.models.processing.conventions import IDENTITIES, LEROBOT, OPENPI
from vla_accel_ros.models.processing.lerobot_processors import (
    ABSOLUTE,
    ACTION_TOKENIZER,
    RELATIVE,
    read_prompted_normalizers,
    read_relative,
)
from vla_accel_ros.models.processing.norm_stats import read_normalizers as openpi_normalizers
from vla_accel_ros.models.text.tokenizer import load_tokenizer

ROOT = "model."
HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
FAST_FOLDER = "fast_tokenizer"
STEPS = (RELATIVE, ABSOLUTE, ACTION_TOKENIZER)
FIELDS = LEROBOT_FIELDS | words("""
    paligemma_variant action_expert_variant dtype use_relative_actions relative_exclude_joints
    action_feature_names image_resolution text_tokenizer_name action_tokenizer_name max_action_tokens
    max_decoding_steps validate_action_token_prefix use_kv_cache
""")
FIXED: Mapping[str, Any] = {**LEROBOT_FIXED, "temperature": 0.0, "fast_skip_tokens": SKIPPED}


def holds(contents: Contents) -> bool:
    """Return whether config.json names a pi0-FAST."""
    return contents.config.get("type") == "pi0_fast" or contents.kind == "pi0_fast"


def load(contents: Contents, options: Options) -> PiFastPolicy:
    """See checkpoint.load_policy."""
    folder, config = contents.folder, read_pi_fast_config(contents)

    def read_weights() -> PiFast:
        network, names = empty(PiFast, config, options.dtype), _names(contents, config)
        return filled(network, contents.table, names, contents.weights, options, fused_parts(network))

    if config.openpi:
        return openpi_policy(contents, config, options, read_weights)
    tokenizer, fast = load_tokenizer(folder, config.vocab), load_fast(contents)
    state, actions = options.normalizers(read_prompted_normalizers, folder, config, STEPS)
    relative = read_relative(folder, config.action_dim, contents.config) if options.normalize else None
    mask = options.actions(relative, config.action_dim, str(folder))
    model = options.network(config, str(folder), read_weights)
    return PiFastPolicy(model, tokenizer, state, actions, mask, conventions=LEROBOT, fast=fast)


def openpi_policy(
    contents: Contents, config: PiFastConfig, options: Options, read_weights: Callable[[], PiFast]
) -> PiFastPolicy:
    """Build a policy that openpi trained. read_weights: called last. Raises ValueError if a setting of its
    training is unknown."""
    folder = contents.folder
    tokenizer, fast = load_tokenizer(folder, config.vocab), load_fast(contents)
    training, _ = known_training(contents, config)
    declared = {DELTA} if options.delta_mask is not None or OURS in contents.config else set()
    check_training(contents, training, tuple(name for name in training.unknown if name not in declared))
    state, actions = options.normalizers(openpi_normalizers, folder, True)
    width = action_size(actions.size, config.action_dim, folder)
    mask = options.actions(training.relative(width), width, str(folder))
    model = options.network(config, str(folder), read_weights)
    return PiFastPolicy(model, tokenizer, state, actions, mask, conventions=OPENPI, fast=fast)


def describe_openpi(
    contents: Contents, config: PiFastConfig, statistics: str | None, form: str, missing: Missing
) -> Description:
    """See models.checkpoints.description. missing: of the weights."""
    described = openpi_description(contents, config, statistics, form)
    missing.read(load_fast, contents)
    return replace(described, missing=(*described.missing, *missing.sentences))


def load_fast(contents: Contents) -> FastTokenizer:
    """Return the tokenizer of actions. Raises ValueError saying what to copy if there is none."""
    name = contents.config.get("action_tokenizer_name")
    places = [contents.folder / FAST_FOLDER]
    places += [contents.folder / name] if isinstance(name, str) and name else []
    for place in places:
        if (place / "processor_config.json").is_file():
            return FastTokenizer(place)
    raise ValueError(
        f"{contents.folder} has no folder {FAST_FOLDER} with the tokenizer of actions, which lerobot "
        "downloads; copy tokenizer.json and processor_config.json of "
        f"{name or 'physical-intelligence/fast'} into it."
    )


def read_pi_fast_config(contents: Contents) -> PiFastConfig:
    """Return the sizes: "vla_accel_ros" of `config.json` if present, else inferred from its other fields and
    the shapes. Raises ValueError if a setting is unknown."""
    return read_sizes(contents, PiFastConfig.from_json, infer_pi_fast, check_settings)


def check_settings(data: Mapping[str, Any]) -> None:
    """Raise ValueError naming a field of lerobot's config.json that is unknown or not implemented."""
    check_fields(data, "", FIELDS, FIXED)


@tensors_of("the folder that lerobot saved a pi0-FAST in")
def infer_pi_fast(shapes: Shapes, data: Mapping[str, Any]) -> PiFastConfig:
    """Return the sizes of the checkpoint with these tensors. data: lerobot's config.json. Raises ValueError
    if a tensor is missing or a setting is unknown."""
    check_settings(data)
    head_dim, _ = axes(shapes, f"{ROOT}{PREFIX}layers.0.self_attn.k_proj.weight", 2)  # of its one key head
    return PiFastConfig(
        vision=siglip(shapes, ROOT + VISION, VISION_HEAD_DIM),
        prefix=stack(GemmaConfig, shapes, ROOT + PREFIX, head_dim),
        vocab=axes(shapes, ROOT + HEAD, 2)[0],
        action_dim=_channels(data),
        state_dim=whole(data, "max_state_dim", 32),
        horizon=whole(data, "n_action_steps"),
        max_action_tokens=whole(data, "max_decoding_steps", whole(data, "max_action_tokens", 256)),
        max_prompt=whole(data, "tokenizer_max_length", 200),
        image_names=lerobot_cameras(data),
    )


def _channels(data: Mapping[str, Any]) -> int:
    """Return D of output_features. The tokens say nothing of it."""
    shape = part(data, "output_features.action.shape")
    if not isinstance(shape, list) or len(shape) != 1:
        raise ValueError(f"output_features.action.shape is {shape!r}; give [D], the robot's channels.")
    return whole({"shape": shape[0]}, "output_features.action.shape")


def _names(contents: Contents, config: PiFastConfig) -> dict[str, str]:
    """See formats.fitting."""
    return fitting(empty(PiFast, config), contents.table, contents.weights, lambda name: ROOT + name)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    folder, config, missing = contents.folder, read_pi_fast_config(contents), Missing()
    if config.openpi:
        missing.read(_names, contents, config)
        return describe_openpi(contents, config, statistics, "openpi's pi0-FAST, converted", missing)
    arguments = folder, config, STEPS, statistics
    state, actions = missing.read(read_prompted_normalizers, *arguments, default=IDENTITIES)
    relative = missing.read(read_relative, folder, config.action_dim, contents.config)
    missing.read(load_tokenizer, folder, config.vocab)
    missing.read(load_fast, contents)
    missing.read(_names, contents, config)
    notes = [f"acts by up to {config.max_action_tokens} tokens of FAST, {config.horizon} actions of them"]
    return lerobot_description(contents, config, state, actions, missing, notes, statistics, relative)


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with lerobot's names."""
    names = _names(contents, read_pi_fast_config(contents))
    return renamed(contents.table, {name: name for name in names})


FORMAT = Format("pi0-FAST", holds, describe, load, weights)
