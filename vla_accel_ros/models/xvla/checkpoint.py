"""Read folders in which lerobot saved an X-VLA.

Layout: `config.json` (type xvla), `model.safetensors` with every name behind `model.`, the two processor
files, and BART's tokenizer, in the folder or in `tokenizer/`. Up to 0.4.4 lerobot had Microsoft's Florence-2,
whose names differ and whose image projection is transposed. Which kind of robot a policy drives (its domain)
is in the processors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_accel_ros.models.checkpoints.description import Description, Group, Missing
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    delay_notes,
    filled,
    fitting,
    read_sizes,
    renamed,
    trained_delay,
)
from vla_accel_ros.models.checkpoints.lerobot import action_width, lerobot_description
from vla_accel_ros.models.checkpoints.shards import Stored, named
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.processing.conventions import IDENTITIES, LEROBOT
from vla_accel_ros.models.processing.lerobot_processors import BEFORE, read_lerobot_normalizers, read_steps
from vla_accel_ros.models.text.tokenizer import load_tokenizer
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.models.xvla.grippers import REAL
from vla_accel_ros.models.xvla.model import XVLA
from vla_accel_ros.models.xvla.policy import XVLAPolicy
from vla_accel_ros.models.xvla.sizes import check_settings, infer_xvla

ROOT, PROJECTION = "model.", "vlm.multi_modal_projector.image_projection.weight"
EMBEDDING = "vlm.language_model.encoder.embed_tokens.weight"
STEPS = ("xvla_image_to_float", "xvla_imagenet_normalize", "xvla_add_domain_id", "xvla_libero_action_to_ee6d")
"""lerobot's steps before an X-VLA: what they do is done here, and the last one concerns training alone."""
MICROSOFTS = (
    (r"^vlm\.image_projection$", PROJECTION),
    (r"^vlm\.image_proj_norm\.", "vlm.multi_modal_projector.image_proj_norm."),
    (r"^vlm\.image_pos_embed\.", "vlm.multi_modal_projector.image_position_embed."),
    (r"^vlm\.visual_temporal_embed\.", "vlm.multi_modal_projector.visual_temporal_embed."),
    (r"^vlm\.language_model\.model\.", "vlm.language_model."),
    (r"^(vlm\.vision_tower\.convs\.\d+)\.proj\.", r"\1.conv."),
    (r"\.(conv[12])\.fn\.dw\.", r".\1."),
    (r"\.(window_attn|channel_attn)\.fn\.", r".\1."),
    (r"\.(window_attn|channel_attn)\.norm\.", r".norm1."),
    (r"\.ffn\.fn\.net\.", ".ffn."),
    (r"\.ffn\.norm\.", ".norm2."),
)
"""Microsoft's names -> transformers'."""
SHARED = "vlm.language_model.shared.weight"
"""Another name of the token embedding."""
UNUSED = re.compile(r"^vlm\.language_model\.(final_logits_bias|lm_head\.|decoder\.)|^vlm\.lm_head\.")


EE6D = ("ee6d", "agibot_ee6d")
HANDS = tuple(
    group
    for number in (1, 2)
    for group in (Group(f"hand_{number}", 9, {"preset": "xvla"}), Group(f"gripper_{number}", 1))
)
"""Two hands with a gripper each; a robot with one has the first."""


def holds(contents: Contents) -> bool:
    """Return whether config.json names an X-VLA, or the tensors have its names."""
    is_xvla = contents.config.get("type") == "xvla" or contents.kind == "xvla"
    return is_xvla or ROOT + "transformer.soft_prompt_hub.weight" in contents.tensors


def read_table(contents: Contents) -> dict[str, Stored]:
    """Return every tensor by its name in our network, without what no path reads."""
    table = {
        name: stored for name, stored in named(contents.table, _native).items() if not UNUSED.match(name)
    }
    if ROOT + "vlm.image_projection" in contents.table:  # Microsoft's
        stored = table[PROJECTION]
        table[PROJECTION] = replace(stored, shape=stored.shape[::-1], transposed=True)
    shared = table.pop(SHARED, None)
    return table if shared is None else {EMBEDDING: shared, **table}


def _native(stored: str) -> str:
    name = stored.removeprefix(ROOT)
    for pattern, replacement in MICROSOFTS:
        name = re.sub(pattern, replacement, name)
    return name


def load(contents: Contents, options: Options) -> XVLAPolicy:
    """See checkpoint.load_policy."""
    folder, config = contents.folder, read_xvla_config(contents)
    tokenizer = load_tokenizer(folder, config.text.vocab)
    domain = read_domain(folder, config)
    state, actions = options.normalizers(read_lerobot_normalizers, folder, STEPS)
    width = REAL.get(config.action_mode, config.action_dim)
    if actions.size or config.action_mode == "auto":
        width = action_width(contents, config.action_dim, actions)
    mask = options.actions(None, width, str(folder))
    delay = trained_delay(contents, config.horizon)

    def read_weights() -> XVLA:
        table, network = read_table(contents), empty(XVLA, config, options.dtype)
        names = fitting(network, table, contents.weights)
        return filled(network, table, names, contents.weights, options)

    model = options.network(config, str(folder), read_weights)
    return XVLAPolicy(
        model, tokenizer, state, actions, mask, trained_delay=delay, conventions=LEROBOT, domain=domain
    )


def read_domain(folder: Path, config: XVLAConfig) -> int:
    """Return the number of the kind of robot. Raises ValueError if the processors have none."""
    for step in read_steps(folder / BEFORE):
        if step.name == "xvla_add_domain_id":
            domain = step.config.get("domain_id")
            if not isinstance(domain, int) or isinstance(domain, bool) or not 0 <= domain < config.domains:
                raise ValueError(
                    f"{folder / BEFORE}, xvla_add_domain_id.domain_id is {domain!r}; it must be one from "
                    f"0 to {config.domains - 1}."
                )
            return domain
    raise ValueError(
        f"{folder / BEFORE} has no step xvla_add_domain_id, which says for which kind of robot the policy "
        "acts; copy the processors of its training."
    )


def read_xvla_config(contents: Contents) -> XVLAConfig:
    """Return the sizes: "vla_accel_ros" of `config.json` if present, else inferred from its other fields and
    the shapes. Raises ValueError if a setting is unknown."""

    def infer(_: object, data: Mapping[str, Any]) -> XVLAConfig:
        return infer_xvla({name: stored.shape for name, stored in read_table(contents).items()}, data)

    return read_sizes(contents, XVLAConfig.from_json, infer, check_settings)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    folder, config, missing = contents.folder, read_xvla_config(contents), Missing()
    state, actions = missing.read(read_lerobot_normalizers, folder, STEPS, statistics, default=IDENTITIES)
    missing.read(load_tokenizer, folder, config.text.vocab)
    missing.read(lambda: fitting(empty(XVLA, config), read_table(contents), contents.weights))
    domain = missing.read(read_domain, folder, config, default=None)
    notes = [f"acts as domain {domain} of {config.domains}, with actions {config.action_mode}"]
    notes += delay_notes(contents, config.horizon, missing)
    described = lerobot_description(contents, config, state, actions, missing, notes, statistics)
    return replace(described, groups=HANDS if config.action_mode in EE6D else ())


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with lerobot's present names."""
    table, model = read_table(contents), empty(XVLA, read_xvla_config(contents))
    return renamed(table, {name: ROOT + name for name in fitting(model, table, contents.weights)})


FORMAT = Format("X-VLA", holds, describe, load, weights)
