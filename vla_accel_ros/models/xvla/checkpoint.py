"""Read folders in which lerobot saved an X-VLA.

Layout: `config.json` (type xvla), `model.safetensors` with every name behind `model.`, the two processor
files, and BART's tokenizer, in the folder or in `tokenizer/`. Up to 0.4.4 lerobot had Microsoft's Florence-2,
whose names differ and whose image projection is transposed. Which kind of robot a policy drives (its domain)
is in the processors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vla_accel_ros.models.checkpoints.description import Description, Group, Missing
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    delay_notes,
    read_sizes,
    trained_delay,
)
from vla_accel_ros.models.checkpoints.shards import Stored, check_merged, check_table
from vla_accel_ros.models.checkpoints.streaming import fill, on_meta, read, reading_order
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.pi.lerobot_checkpoint import action_width, lerobot_description
from vla_accel_ros.models.processing.conventions import IDENTITIES, LEROBOT
from vla_accel_ros.models.processing.lerobot_processors import BEFORE, read_lerobot_normalizers
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


def native(table: Mapping[str, Stored]) -> dict[str, str]:
    """Return the stored name of each parameter, by its name in our network; without what no path reads."""
    names = dict[str, str]()
    for stored in table:
        name = stored.removeprefix(ROOT)
        for pattern, replacement in MICROSOFTS:
            name = re.sub(pattern, replacement, name)
        if not UNUSED.match(name):
            names[name] = stored
    shared = names.pop(SHARED, None)
    if shared is not None:
        names.setdefault(EMBEDDING, shared)
    return names


def _shaped(table: Mapping[str, Stored]) -> dict[str, Stored]:
    """The table by our names; Microsoft's image projection has its shape there."""
    shaped = {name: table[stored] for name, stored in native(table).items()}
    if _transposes(table):
        shaped[PROJECTION] = replace(shaped[PROJECTION], shape=shaped[PROJECTION].shape[::-1])
    return shaped


def _transposes(table: Mapping[str, Stored]) -> bool:
    return ROOT + "vlm.image_projection" in table


def load(contents: Contents, options: Options) -> XVLAPolicy:
    """See checkpoint.load_policy."""
    folder, config = contents.folder, read_xvla_config(contents)
    tokenizer = load_tokenizer(folder, config.text.vocab)
    domain = read_domain(folder, config)
    state, actions = options.normalizers(read_lerobot_normalizers, folder, STEPS)
    width = action_width(contents, config, actions) if actions.size or config.action_mode == "auto" else 0
    width = width or REAL.get(config.action_mode, config.action_dim)
    mask = options.actions(None, width, str(folder))
    delay = trained_delay(contents, config.horizon)

    def read_weights() -> XVLA:
        table, where = contents.table, str(contents.weights)
        check_xvla(table, config, contents.weights)
        with on_meta():
            network = XVLA(config).to(options.dtype)
        total = sum(stored.bytes for stored in _shaped(table).values())
        told = options.progress, None, options.layer_loaded
        fill(network, _values(table), options.device, total, where, *told)
        return network.requires_grad_(False).eval()

    model = options.network(config, str(folder), read_weights)
    return XVLAPolicy(
        model, tokenizer, state, actions, mask, trained_delay=delay, conventions=LEROBOT, domain=domain
    )


def read_domain(folder: Path, config: XVLAConfig) -> int:
    """Return the number of the kind of robot. Raises ValueError if the processors have none."""
    data: Any = read_json(folder / BEFORE) if (folder / BEFORE).is_file() else {}
    steps = data.get("steps") if isinstance(data, dict) else None
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("registry_name") == "xvla_add_domain_id":
            settings = step.get("config")
            domain = settings.get("domain_id") if isinstance(settings, dict) else None
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


def _values(table: Mapping[str, Stored]) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter of ours with its value."""
    ours = {stored: name for name, stored in native(table).items()}
    for stored, value in read(table, ours):
        turns = ours[stored] == PROJECTION and _transposes(table)
        yield ours[stored], value.t().contiguous() if turns else value


def check_xvla(table: Mapping[str, Stored], config: XVLAConfig, where: Path) -> None:
    """Raise one ValueError that lists every difference between the tensors and the model."""
    with on_meta():
        model = XVLA(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    check_table(_shaped(table), shapes, lambda name: False, where)


def read_xvla_config(contents: Contents) -> XVLAConfig:
    """Return the sizes: "vla_accel_ros" of `config.json` if present, else inferred from its other fields and
    the shapes. Raises ValueError if a setting is unknown."""
    check_merged(contents.folder, contents.tensors)

    def infer(_: object, data: Mapping[str, Any]) -> XVLAConfig:
        return infer_xvla({name: stored.shape for name, stored in _shaped(contents.table).items()}, data)

    return read_sizes(contents, XVLAConfig.from_json, infer, check_settings)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    folder, config, missing = contents.folder, read_xvla_config(contents), Missing()
    state, actions = missing.read(read_lerobot_normalizers, folder, STEPS, statistics, default=IDENTITIES)
    missing.read(load_tokenizer, folder, config.text.vocab)
    missing.read(lambda: check_xvla(contents.table, config, contents.weights))
    domain = missing.read(read_domain, folder, config, default=None)
    notes = [f"acts as domain {domain} of {config.domains}, with actions {config.action_mode}"]
    notes += delay_notes(contents, config.horizon, missing)
    described = lerobot_description(contents, config, state, actions, missing, notes, statistics)
    return replace(described, groups=HANDS if config.action_mode in EE6D else ())


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with lerobot's present names."""
    config = read_xvla_config(contents)
    check_xvla(contents.table, config, contents.weights)
    shaped, ours = _shaped(contents.table), native(contents.table)
    order = reading_order(contents.table, ours.values())
    names = {stored: name for name, stored in ours.items()}
    stored = {ROOT + names[name]: shaped[names[name]] for name in order}
    return Weights(stored, ((ROOT + name, value) for name, value in _values(contents.table)))


FORMAT = Format("X-VLA", holds, describe, load, weights)
