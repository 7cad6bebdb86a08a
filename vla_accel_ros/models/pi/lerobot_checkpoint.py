"""Read folders in which lerobot saved a pi0 or pi0.5.

Layout: `config.json` (type pi0 or pi05), `model.safetensors` with openpi's names behind `model.`, the two
processor files with the statistics that they name, and PaliGemma's tokenizer, which older lerobot downloads
from the hub instead of saving it and which must then be copied into the folder. Image resizing, normalisation
and flow times follow lerobot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.description import (
    Description,
    Missing,
)
from vla_accel_ros.models.checkpoints.fields import LEROBOT as LEROBOT_FIELDS
from vla_accel_ros.models.checkpoints.fields import LEROBOT_FIXED, OURS, check_fields, words
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    delay_notes,
    own_sizes,
    trained_delay,
)
from vla_accel_ros.models.checkpoints.lerobot import action_width, lerobot_cameras, lerobot_description
from vla_accel_ros.models.config import TRAINED_AS, PiConfig
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.pi.checkpoint import pi_weights, read_pi
from vla_accel_ros.models.pi.infer_config import infer_config
from vla_accel_ros.models.pi.weights import LEROBOT as LEROBOT_NAMES
from vla_accel_ros.models.pi.weights import before_names, pi_shapes, pi_sources
from vla_accel_ros.models.policy import PROMPT_STATES, Policy
from vla_accel_ros.models.processing.conventions import BEFORE_0_5, IDENTITIES, LEROBOT
from vla_accel_ros.models.processing.lerobot_processors import (
    ABSOLUTE,
    RELATIVE,
    check_since_0_4,
    read_prompted_normalizers,
    read_relative,
)
from vla_accel_ros.models.text.tokenizer import load_tokenizer

PROMPT_STATE = "prompt_state"
"""The only setting of a training that lerobot's files may leave open."""
FIELDS = LEROBOT_FIELDS | words("""
    paligemma_variant action_expert_variant dtype attention_implementation proj_width image_resolution
    resize_imgs_with_padding use_relative_actions relative_exclude_joints action_feature_names
    time_sampling_beta_alpha time_sampling_beta_beta time_sampling_scale time_sampling_offset memory_frames
    memory_stride memory_temporal_attention_every
""")
FIXED: Mapping[str, Any] = {
    **LEROBOT_FIXED,
    "use_visual_memory": False,
    "use_proprioceptive_memory": False,
}
"""Fields of config.json that change actions, with the value that is implemented."""
MORE_STEPS = (RELATIVE, ABSOLUTE)
"""lerobot's steps beside that which writes the prompt."""
SINCE_0_5_1 = ("use_relative_actions", "relative_exclude_joints", "action_feature_names")
SINCE_0_4_3 = "use_peft"
"""Fields of config.json, which the version that saves a policy writes anew."""
TRAIN_CONFIG, SINCE_0_5_0 = "train_config.json", "cudnn_deterministic"
"""The file beside it, and a field of that."""


def holds(contents: Contents) -> bool:
    """Return whether lerobot's config.json names a pi0 or pi0.5, or the tensors have lerobot's names."""
    return contents.config.get("type") in ("pi0", "pi05") or before_names(contents.tensors) == LEROBOT_NAMES


def read_config(contents: Contents) -> PiConfig:
    """Return the sizes: "vla_accel_ros" of config.json if present, else inferred from its other fields and
    the shapes. Raises ValueError if a setting is unknown or contradicts the weights."""
    file, kind = contents.folder / "config.json", contents.config.get("type")
    read_answer(contents)
    if kind not in ("pi0", "pi05"):
        mend = "only 'pi0' and 'pi05' are known" if kind else "copy lerobot's config.json"
        raise ValueError(f"{file}: type is {kind!r} and the weights have lerobot's names; {mend}.")
    check_since_0_4(contents.folder, contents.tensors, kind)
    check_fields(contents.config, f"{file}: ", FIELDS, FIXED)
    if OURS in contents.config:
        config = own_sizes(contents, PiConfig.from_json)
    else:
        config = infer_config(
            pi_shapes(contents.table),
            str(contents.weights),
            contents.whole("chunk_size"),
            contents.whole("tokenizer_max_length", 200 if kind == "pi05" else 48),
            lerobot_cameras(contents.config, f"{file}: "),
        )
    if config.kind != kind:
        raise ValueError(
            f"{file}: type is {kind!r} but the weights are those of a {config.kind}; make "
            "config.json and the weights of one model."
        )
    side = config.vision.image_size
    for field in ("image_resolution", "resize_imgs_with_padding"):
        if contents.config.get(field, [side, side]) != [side, side]:
            raise ValueError(
                f"{file}: {field} is {contents.config[field]!r}; the image tower takes [{side}, {side}]."
            )
    return config


def load(contents: Contents, options: Options) -> Policy:
    """See checkpoint.load_policy."""
    folder, config = contents.folder, read_config(contents)
    tokenizer = load_tokenizer(folder, config.vocab)
    state, actions = options.normalizers(read_prompted_normalizers, folder, config, MORE_STEPS)
    width = action_width(contents, config.action_dim, actions)
    relative = read_relative(folder, width, contents.config) if options.normalize else None
    mask = options.actions(relative, width, str(folder))
    delay = trained_delay(contents, config.horizon)
    prompt_state = trained_prompt_state(contents, relative)
    conventions = BEFORE_0_5 if prompt_state == "padded" else LEROBOT
    model = options.network(config, str(folder), lambda: read_pi(contents, config, options))
    return Policy(model, tokenizer, state, actions, mask, prompt_state, delay, conventions)


def read_answer(contents: Contents) -> str:
    """Return the prompt_state that the user gives or that a conversion kept; "auto" without any. Raises
    ValueError if an answer is malformed, or if two differ."""
    where = f"{contents.folder / 'config.json'}, field {OURS}.{TRAINED_AS}"
    trained_as = contents.config[OURS].get(TRAINED_AS, {}) if contents.kind else {}
    if not isinstance(trained_as, dict) or trained_as.keys() - {PROMPT_STATE}:
        raise ValueError(f"{where} is {trained_as!r}; convert the checkpoint again.")
    words = contents.trained_as.strip()
    name, _, word = words.partition("=")
    if words and name != PROMPT_STATE:
        raise ValueError(
            f"{TRAINED_AS} is {contents.trained_as!r}, but {contents.folder} (lerobot) has the settings of "
            f"its training in its own files, all but {PROMPT_STATE}; give {PROMPT_STATE}=padded, own or "
            "none, or nothing."
        )
    answers = {
        TRAINED_AS: word if words else "auto",
        f"the parameter {PROMPT_STATE}": contents.prompt_state,
        where: trained_as.get(PROMPT_STATE, "auto"),
    }
    for source, answer in answers.items():
        if answer not in ("auto", *PROMPT_STATES):
            raise ValueError(
                f"{PROMPT_STATE} is {answer!r} by {source}; give one of {', '.join(PROMPT_STATES)}."
            )
    different = {answer: source for source, answer in answers.items() if answer != "auto"}
    if len(different) > 1:
        sources = " but ".join(f"{answer} by {source}" for answer, source in different.items())
        raise ValueError(f"{contents.folder}: {PROMPT_STATE} is {sources}; give that of its training.")
    return next(iter(different), "auto")


def trained_prompt_state(contents: Contents, relative: np.ndarray | None) -> str:
    """Return how lerobot wrote the state into the prompt of pi0.5: as read_answer says, or as the version
    that saved the folder did. Up to 0.4.4 it was padded to all dimensions first, since 0.5.0 it is not. The
    same versions put images that are not square on BEFORE_0_5's border, pi0's too.

    No file has the version, but each has fields that began with one. The processors' relative steps began
    with 0.5.1, but a policy keeps the processors of the one it was trained from, so that they may be missing.
    Raises ValueError if the signs disagree or leave it open.
    """
    answer = read_answer(contents)
    if answer != "auto":
        return answer
    signs = [("own", field) for field in SINCE_0_5_1 if field in contents.config][:1]
    if relative is not None:
        signs.append(("own", f"the step {RELATIVE}"))
    if SINCE_0_4_3 not in contents.config and not signs:
        signs.append(("padded", f"no {SINCE_0_4_3} in config.json"))
    file = contents.folder / TRAIN_CONFIG
    if file.is_file():
        newer = SINCE_0_5_0 in read_json(file)
        signs.append(
            ("own" if newer else "padded", f"{'a' if newer else 'no'} {SINCE_0_5_0} in {TRAIN_CONFIG}")
        )
    answers = {answer for answer, _ in signs}
    if len(answers) == 1:
        return answers.pop()
    reasons = ", ".join(f"{reason}: {answer}" for answer, reason in signs) or f"no {TRAIN_CONFIG} beside it"
    raise ValueError(
        f"{contents.folder} does not say which lerobot saved it ({reasons}): up to 0.4.4 it padded pi0.5's "
        f"state in the prompt, and images that are not square by another colour; give {TRAINED_AS} (--as on "
        f"the command line) {PROMPT_STATE}=padded if that trained it, or {PROMPT_STATE}=own for 0.5.0 and "
        "later."
    )


def version_note(contents: Contents, relative: np.ndarray | None) -> str:
    """Return which versions of lerobot it is run as. Raises ValueError if that is unknown."""
    prompt_state = trained_prompt_state(contents, relative)
    versions = "up to 0.4.4" if prompt_state == "padded" else "since 0.5.0"
    return f"run as by lerobot {versions} ({PROMPT_STATE} {prompt_state})"


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description; such a folder has one set of statistics."""
    folder, config, missing = contents.folder, read_config(contents), Missing()
    arguments = folder, config, MORE_STEPS, statistics
    state, actions = missing.read(read_prompted_normalizers, *arguments, default=IDENTITIES)
    width = action_width(contents, config.action_dim, actions)
    relative = missing.read(read_relative, folder, width, contents.config)
    missing.read(load_tokenizer, folder, config.vocab)
    missing.read(lambda: pi_sources(contents.table, config, contents.weights))
    notes = delay_notes(contents, config.horizon, missing)
    notes += missing.read(lambda: [version_note(contents, relative)], default=[])
    description = lerobot_description(contents, config, state, actions, missing, notes, statistics, relative)
    answer = read_answer(contents)
    return description if answer == "auto" else replace(description, trained_as={PROMPT_STATE: answer})


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with openpi's names, without lerobot's `model.`."""
    return pi_weights(contents, read_config(contents), LEROBOT)


FORMAT = Format("lerobot", holds, describe, load, weights, asks=True)
