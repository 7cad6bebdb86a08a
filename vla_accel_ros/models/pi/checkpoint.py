"""Read pi0 and pi0.5 folders in openpi's PyTorch layout, which is also ours.

Layout: `model.safetensors` or shards with their index, with openpi's names; `config.json` (our sizes under
"vla_accel_ros"; without them the sizes are inferred from the tensors), `assets/<id>/norm_stats.json`,
`tokenizer.json` or `tokenizer.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from vla_accel_ros.models.checkpoints.description import NOTHING, Description, Missing, trained_range
from vla_accel_ros.models.checkpoints.formats import (
    OURS,
    Contents,
    Format,
    Options,
    Weights,
    action_size,
    delay_notes,
    renamed,
    trained_delay,
)
from vla_accel_ros.models.checkpoints.shards import Stored
from vla_accel_ros.models.config import PI0, PiConfig
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.pi.infer_config import infer_config
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.stored_fold import StoredFold
from vla_accel_ros.models.pi.weights import ROOT, empty_pi, load_pi_model, pi_shapes, pi_sources
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import OPENPI, Conventions, Normalizer
from vla_accel_ros.models.processing.norm_stats import read_moments, read_normalizers, statistics_names
from vla_accel_ros.models.text.tokenizer import load_tokenizer


def holds(contents: Contents) -> bool:
    """Return whether the sizes or tensor names are those of pi0 or pi0.5."""
    return contents.kind in ("pi0", "pi05") or any(name.startswith(ROOT) for name in contents.tensors)


def read_config(contents: Contents) -> PiConfig:
    """Return the sizes: `config.json`'s "vla_accel_ros" if present, else inferred from the tensors'
    shapes."""
    if OURS in contents.config:
        return own_sizes(contents)
    horizon = contents.whole("action_horizon", PI0.horizon)
    return infer_config(pi_shapes(contents.table), str(contents.weights), horizon)


def own_sizes(contents: Contents) -> PiConfig:
    """Return the sizes in config.json under "vla_accel_ros". Raises ValueError if they are malformed."""
    try:
        return PiConfig.from_json(contents.config[OURS])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{contents.folder / 'config.json'}, field {OURS}: {error}") from error


def make_policy(
    contents: Contents, config: PiConfig, options: Options, read_weights: Callable[[], Pi]
) -> Policy:
    """Build a policy from openpi's small files. read_weights: called last, once everything else is valid."""
    folder = contents.folder
    tokenizer = load_tokenizer(folder, config.vocab)
    state, actions = Normalizer.identity(), Normalizer.identity()
    if options.normalize:
        state, actions = read_normalizers(folder, config.kind, options.statistics)
    width = action_size(actions.size, config.action_dim, folder)
    mask = options.actions(None, width, str(folder))
    delay = trained_delay(contents, config.horizon)
    prompt_state = "own" if options.prompt_state == "auto" else options.prompt_state
    model = options.network(config, str(folder), read_weights)
    return Policy(model, tokenizer, state, actions, mask, prompt_state, delay, OPENPI)


def load(contents: Contents, options: Options) -> Policy:
    """See checkpoint.load_policy."""
    config = read_config(contents)
    return make_policy(contents, config, options, lambda: read_pi(contents, config, options))


def read_pi(contents: Contents, config: PiConfig, options: Options) -> Pi:
    """Return the network of a safetensors folder, with its stored fold if there is one."""
    fold = StoredFold.find(contents.folder, config)
    where, table = contents.weights, contents.table
    given = options.device, options.dtype, options.progress, options.layer_loaded
    model = load_pi_model(table, config, where, *given)
    model.fold = fold
    return model


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    return openpi_description(contents, read_config(contents), statistics, "openpi, safetensors", pi_sources)


def openpi_description(
    contents: Contents,
    config: PiConfig,
    statistics: str | None,
    form: str,
    check: Callable[[Mapping[str, Stored], PiConfig, Path], object] | None = None,
) -> Description:
    """Describe a folder from its small files. check: raises ValueError if the tensors do not fit."""
    folder, missing = contents.folder, Missing()
    nothing = (Normalizer.identity(), Normalizer.identity())
    state, actions = missing.read(read_normalizers, folder, config.kind, statistics, default=nothing)
    moments = Missing().read(read_moments, folder, statistics, default=(NOTHING, NOTHING))
    missing.read(load_tokenizer, folder, config.vocab)
    missing.read(StoredFold.find, folder, config)
    if check is not None:
        missing.read(lambda: check(contents.table, config, contents.weights))
    how = "mean and deviation" if config.kind == "pi0" else "quantiles 1 and 99 %"
    notes = [
        "whether actions are relative to the joints (action: delta) is not in the folder: it is in the "
        "settings it was trained with"
    ]
    if OURS not in contents.config and "action_horizon" not in contents.config:
        notes.append('no file gives the horizon, so 50 is used; put {"action_horizon": N} into a config.json')
    notes += delay_notes(contents, config.horizon, missing)
    if config.kind == "pi05":
        notes.append("trained without the state in its prompt (such as pi05_libero)? Then prompt_state: none")
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
        statistics=statistics_names(folder),
        notes=tuple(notes),
        missing=tuple(missing.sentences),
    )


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with openpi's names."""
    return pi_weights(contents, read_config(contents), OPENPI)


def pi_weights(contents: Contents, config: PiConfig, conventions: Conventions) -> Weights:
    """Return the weights of a safetensors folder under openpi's names."""
    sources = pi_sources(contents.table, config, contents.weights)
    names = {source: name for name, source in sources.items()}
    return renamed(contents.table, names, fused_parts(empty_pi(config)), conventions.time_rule)


FORMAT = Format("openpi", holds, describe, load, weights)
