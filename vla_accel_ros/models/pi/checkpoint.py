"""Read pi0 and pi0.5 folders in openpi's PyTorch layout, which is also ours.

Layout: `model.safetensors` or shards with their index, with openpi's names; `config.json` (our sizes under
"vla_accel_ros"; without them the sizes are inferred from the tensors), `assets/<id>/norm_stats.json`,
`tokenizer.json` or `tokenizer.model`. Settings of the training that no file holds are asked for, see
training.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_accel_ros.models.checkpoints.description import NOTHING, Description, Missing
from vla_accel_ros.models.checkpoints.fields import OURS, check_fields, words
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    action_size,
    delay_notes,
    own_sizes,
    renamed,
    trained_delay,
)
from vla_accel_ros.models.checkpoints.shards import Stored
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import TRAINED_AS, PiConfig
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.pi.infer_config import infer_config
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.training import (
    DELTA,
    HORIZON,
    PUBLIC,
    USUAL,
    Training,
    ask,
    parse_training,
    read_training,
)
from vla_accel_ros.models.pi.weights import ROOT, load_pi_model, pi_shapes, pi_sources
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import IDENTITIES, OPENPI, Conventions
from vla_accel_ros.models.processing.norm_stats import read_moments, read_normalizers, statistics_names
from vla_accel_ros.models.processing.ranges import trained_range
from vla_accel_ros.models.text.tokenizer import load_tokenizer

FIELDS = words("""
    action_dim action_horizon paligemma_variant action_expert_variant precision rtc_training_max_delay
""")
"""Fields of the config.json that openpi's conversion writes, and models.flow.committed's."""


def holds(contents: Contents) -> bool:
    """Return whether the sizes or tensor names are those of pi0 or pi0.5."""
    return contents.kind in ("pi0", "pi05") or any(name.startswith(ROOT) for name in contents.tensors)


def read_config(contents: Contents) -> PiConfig:
    """Return the sizes: `config.json`'s "vla_accel_ros" if present, else inferred from the tensors'
    shapes. Raises ValueError if a setting is unknown."""
    check_fields(contents.config, f"{contents.folder / 'config.json'}: ", FIELDS, {})
    if OURS in contents.config:
        return own_sizes(contents, PiConfig.from_json)
    return with_horizon(contents, infer_config(pi_shapes(contents.table), str(contents.weights)))


def with_horizon(contents: Contents, config: PiConfig) -> PiConfig:
    """Return the sizes with the horizon that the folder or its user gives, if any. Raises ValueError if they
    differ."""
    return replace(config, horizon=known_training(contents, config)[0].action_horizon or config.horizon)


def known_training(contents: Contents, config: Any) -> tuple[Training, Mapping[str, Any]]:
    """Return what is known of the training of a folder in openpi's layout, and which of it are only USUAL:
    those that our own folder lacks. Raises ValueError if an answer is malformed or contradicts another."""
    file, stored = contents.folder / "config.json", dict[str, Any]()
    if OURS in contents.config:
        trained_as = contents.config[OURS].get(TRAINED_AS, {})
        if not isinstance(trained_as, dict):
            raise ValueError(
                f"{file}, field {OURS}.{TRAINED_AS} is {trained_as!r}; convert the checkpoint again."
            )
        stored = {**trained_as, HORIZON: config.horizon}
    elif HORIZON in contents.config:
        stored = {HORIZON: contents.config[HORIZON]}
    training = read_training(contents.folder, stored, contents.trained_as, config.kind)
    usual = USUAL[config.kind].to_json() if OURS in contents.config else {}
    usual = {name: value for name, value in usual.items() if name in training.unknown}
    return replace(training, **usual), usual


def check_training(contents: Contents, training: Training, unknown: tuple[str, ...]) -> None:
    """Raise ValueError if settings are `unknown`, or if one is not computed here."""
    if unknown:
        raise ask(contents.folder, unknown)
    if training.adapt_to_pi:
        raise ValueError(
            f"{contents.folder} was trained with adapt_to_pi (ALOHA's joints and grippers in pi's units), "
            "which is not computed here; train without it, or run it with openpi."
        )


def make_policy(
    contents: Contents, config: PiConfig, options: Options, read_weights: Callable[[], Pi]
) -> Policy:
    """Build a policy from openpi's small files. read_weights: called last, once everything else is valid."""
    folder = contents.folder
    tokenizer = load_tokenizer(folder, config.vocab)
    training, _ = known_training(contents, config)
    is_declared = options.delta_mask is not None or OURS in contents.config
    check_training(
        contents, training, tuple(name for name in training.unknown if not (is_declared and name == DELTA))
    )
    state, actions = options.normalizers(read_normalizers, folder, bool(training.use_quantile_norm))
    width = action_size(actions.size, config.action_dim, folder)
    mask = options.actions(training.relative(width), width, str(folder))
    delay = trained_delay(contents, config.horizon)
    prompt_state = contents.prompt_state
    if prompt_state == "auto":
        prompt_state = "own" if training.discrete_state_input else "none"
    elif parse_training(contents.trained_as, config.kind).discrete_state_input is (prompt_state == "none"):
        raise ValueError(
            f"prompt_state is {prompt_state!r}, but {TRAINED_AS} {contents.trained_as!r} says the opposite; "
            "leave prompt_state at auto."
        )
    model = options.network(config, str(folder), read_weights)
    return Policy(model, tokenizer, state, actions, mask, prompt_state, delay, OPENPI)


def load(contents: Contents, options: Options) -> Policy:
    """See checkpoint.load_policy."""
    config = read_config(contents)
    return make_policy(contents, config, options, lambda: read_pi(contents, config, options))


def read_pi(contents: Contents, config: PiConfig, options: Options) -> Pi:
    """Return the network of a safetensors folder."""
    return load_pi_model(contents.table, config, contents.weights, options)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    return openpi_description(contents, read_config(contents), statistics, "openpi, safetensors", pi_sources)


def openpi_description(
    contents: Contents,
    config: Any,
    statistics: str | None,
    form: str,
    check: Callable[[Mapping[str, Stored], PiConfig, Path], object] | None = None,
) -> Description:
    """Describe a folder from its small files. config: a PiConfig or PiFastConfig. check: raises ValueError if
    the tensors do not fit."""
    folder, missing = contents.folder, Missing()
    training, usual = known_training(contents, config)
    unknown = tuple(name for name in training.unknown if name != DELTA)
    missing.read(check_training, contents, training, unknown)
    quantile = bool(training.use_quantile_norm)
    state, actions = missing.read(read_normalizers, folder, quantile, statistics, default=IDENTITIES)
    moments = Missing().read(read_moments, folder, statistics, default=(NOTHING, NOTHING))
    missing.read(load_tokenizer, folder, config.vocab)
    if check is not None:
        missing.read(lambda: check(contents.table, config, contents.weights))
    how = "quantiles 1 and 99 %" if quantile else "mean and deviation"
    if training.use_quantile_norm is None:
        how = f"unknown, shown by {how}"
    words = ", ".join(f"{name} {str(value).lower()}" for name, value in usual.items())
    assumed = f"{folder} keeps no {TRAINED_AS}, so a usual {config.kind} is assumed: {words}"
    notes = [assumed] if usual else []
    if training.delta_action_mask is None:
        notes.append(
            "whether actions are relative to the joints (action: delta) is not in the folder: it is in the "
            f"settings it was trained with ({TRAINED_AS} {DELTA}=6,-1, or none)"
        )
    public = PUBLIC.get(contents.trained_as.partition(" ")[0])
    if public is not None:
        notes.append(f"its actions: {public.actions}")
    notes += delay_notes(contents, config.horizon, missing)
    if config.kind == "pi05" and training.discrete_state_input is not None:
        notes.append(f"its prompt has {'the' if training.discrete_state_input else 'no'} state")
    return Description(
        folder,
        form,
        config,
        contents.tensors,
        trained_range(state),
        trained_range(actions),
        f"{how}, epsilon 1e-6" if state.size else "none",
        state_moments=moments[0],
        action_moments=moments[1],
        relative=training.relative(actions.size),
        statistics=statistics_names(folder),
        notes=tuple(notes),
        trained_as={name: value for name, value in training.to_json().items() if name not in usual},
        unknown=() if OURS in contents.config else training.unknown,
        assumed=assumed if usual else "",
        other_actions="" if public is None or public.moves_joints else public.actions,
        missing=tuple(missing.sentences),
    )


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with openpi's names."""
    return pi_weights(contents, read_config(contents), OPENPI)


def pi_weights(contents: Contents, config: PiConfig, conventions: Conventions) -> Weights:
    """Return the weights of a safetensors folder under openpi's names."""
    sources = pi_sources(contents.table, config, contents.weights)
    names = {source: name for name, source in sources.items()}
    return renamed(contents.table, names, fused_parts(empty(Pi, config)))


FORMAT = Format("openpi", holds, describe, load, weights, asks=True)
