"""Read checkpoints of openpi's JAX training of a pi0-FAST: PaliGemma in Orbax's folder `params`.

As those of a pi0 (models.pi.orbax_checkpoint), which names the settings that are asked for. The tokenizer of
actions lies in `fast_tokenizer/`. Chunks have as many channels as the statistics of actions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.fields import check_fields
from vla_accel_ros.models.checkpoints.formats import Contents, Format, Options, Weights, fitting
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import IMAGE_NAMES
from vla_accel_ros.models.pi.checkpoint import FIELDS, known_training
from vla_accel_ros.models.pi.jax_names import jax_stacks
from vla_accel_ros.models.pi.orbax_checkpoint import (
    PARAMS,
    Array,
    array_values,
    filled_by,
    holds_arrays,
    is_fast,
    read_arrays,
    stored_parameters,
)
from vla_accel_ros.models.pi_fast.checkpoint import ROOT, describe_openpi, openpi_policy
from vla_accel_ros.models.pi_fast.config import PI0_FAST, PiFastConfig
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.pi_fast.policy import PiFastPolicy

DROID_IMAGES = ("base_0_rgb", "base_1_rgb", "wrist_0_rgb")
"""The cameras of its own configurations but LIBERO's, which has pi0's."""
MAX_PROMPT = 250
MOST_CHANNELS = 32


def holds(contents: Contents) -> bool:
    """Return whether the folder has Orbax parameters of a pi0-FAST."""
    return holds_arrays(contents) and is_fast(contents.folder)


def read_config(contents: Contents, arrays: list[Array]) -> PiFastConfig:
    """Return the sizes, from the arrays and the settings of the training. Raises ValueError naming what is
    missing or unknown."""
    where = contents.folder / PARAMS
    check_fields(contents.config, f"{contents.folder / 'config.json'}: ", FIELDS, {})
    try:
        stacks: Any = jax_stacks({array.name: array.shape for array in arrays})
    except KeyError as error:
        raise ValueError(f"{where} has no array {error.args[0]}; copy the checkpoint again.") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    config = PiFastConfig(
        **stacks,
        action_dim=MOST_CHANNELS,
        state_dim=MOST_CHANNELS,
        horizon=PI0_FAST.horizon,
        max_action_tokens=PI0_FAST.max_action_tokens,
        max_prompt=MAX_PROMPT,
        image_names=IMAGE_NAMES if "libero" in contents.trained_as else DROID_IMAGES,
        openpi=True,
    )
    return replace(config, horizon=known_training(contents, config)[0].action_horizon or config.horizon)


def load(contents: Contents, options: Options) -> PiFastPolicy:
    """See checkpoint.load_policy."""
    arrays = read_arrays(contents.folder)
    config = read_config(contents, arrays)

    def read_weights() -> PiFast:
        _names(contents, arrays, config)
        return filled_by(arrays, empty(PiFast, config, options.dtype), contents.folder, options)

    return openpi_policy(contents, config, options, read_weights)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    arrays, missing = read_arrays(contents.folder), Missing()
    config = read_config(contents, arrays)
    expanded = replace(contents, tensors=_stored(contents, arrays))
    missing.read(_names, contents, arrays, config)
    return describe_openpi(expanded, config, statistics, "openpi, JAX (Orbax)", missing)


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with the names of safetensors folders."""
    arrays = read_arrays(contents.folder)
    _names(contents, arrays, read_config(contents, arrays))
    values = ((ROOT + name, value) for name, value in array_values(arrays))
    return Weights(_stored(contents, arrays), values)


def _stored(contents: Contents, arrays: list[Array]) -> dict[str, Any]:
    parameters = stored_parameters(arrays, contents.folder)
    return {ROOT + name: stored for name, stored in parameters.items()}


def _names(contents: Contents, arrays: list[Array], config: PiFastConfig) -> dict[str, str]:
    """See formats.fitting."""
    model, table = empty(PiFast, config), _stored(contents, arrays)
    return fitting(model, table, contents.folder / PARAMS, lambda name: ROOT + name)


FORMAT = Format("openpi, JAX pi0-FAST", holds, describe, load, weights, asks=True)
