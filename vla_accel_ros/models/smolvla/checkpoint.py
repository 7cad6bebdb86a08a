"""Read folders in which lerobot saved a SmolVLA.

Layout: `config.json` (type smolvla), `model.safetensors` with every name behind `model.`, the two processor
files with the statistics that they name, and `tokenizer.json`, in the folder or in `tokenizer/`. Older
lerobot does not save it but downloads it from the hub: then copy it from the language model named in
`config.json`.
"""

from __future__ import annotations

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    action_size,
    delay_notes,
    filled,
    fitting,
    read_sizes,
    renamed,
    trained_delay,
)
from vla_accel_ros.models.checkpoints.lerobot import lerobot_description
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.processing.conventions import IDENTITIES, LEROBOT
from vla_accel_ros.models.processing.lerobot_processors import check_since_0_4, read_prompted_normalizers
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import UNUSED, SmolVLA
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.models.smolvla.sizes import check_settings, infer_smolvla
from vla_accel_ros.models.text.tokenizer import PLACES, Tokenizer, load_tokenizer

ROOT = "model."


def holds(contents: Contents) -> bool:
    """Return whether config.json names a SmolVLA, or the tensors have its names."""
    is_smolvla = contents.config.get("type") == "smolvla" or contents.kind == "smolvla"
    return is_smolvla or any(name.startswith(ROOT + "vlm_with_expert.") for name in contents.tensors)


def load(contents: Contents, options: Options) -> SmolVLAPolicy:
    """See checkpoint.load_policy."""
    folder, config = contents.folder, read_smolvla_config(contents)
    tokenizer = _tokenizer(contents, config)
    state, actions = options.normalizers(read_prompted_normalizers, folder, config, ())
    width = action_size(actions.size, config.action_dim, folder)
    mask = options.actions(None, width, str(folder))
    delay = trained_delay(contents, config.horizon)
    model = options.network(config, str(folder), lambda: load_smolvla_model(contents, config, options))
    return SmolVLAPolicy(model, tokenizer, state, actions, mask, trained_delay=delay, conventions=LEROBOT)


def _tokenizer(contents: Contents, config: SmolVLAConfig) -> Tokenizer:
    if not any((contents.folder / file).is_file() for file in PLACES):
        raise ValueError(
            f"{contents.folder} has no tokenizer.json, which older lerobot does not save; copy that of "
            f"{contents.config.get('vlm_model_name', 'its language model')} into the folder."
        )
    return load_tokenizer(contents.folder, config.vocab)


def load_smolvla_model(contents: Contents, config: SmolVLAConfig, options: Options) -> SmolVLA:
    """Return a model of these sizes with the folder's weights, see formats.filled."""
    model, names = empty(SmolVLA, config, options.dtype), _names(contents, config)
    return filled(model, contents.table, names, contents.weights, options)


def _names(contents: Contents, config: SmolVLAConfig) -> dict[str, str]:
    """See formats.fitting."""
    model, table, unused = empty(SmolVLA, config), contents.table, ROOT + UNUSED
    return fitting(model, table, contents.weights, lambda n: ROOT + n, lambda name: name == unused)


def read_smolvla_config(contents: Contents) -> SmolVLAConfig:
    """Return the sizes: "vla_accel_ros" of `config.json` if present, else inferred from its other fields and
    the shapes. Raises ValueError if a setting is unknown."""
    check_since_0_4(contents.folder, contents.tensors, "smolvla")
    return read_sizes(contents, SmolVLAConfig.from_json, infer_smolvla, check_settings)


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description; such a folder has one set of statistics."""
    folder, config, missing = contents.folder, read_smolvla_config(contents), Missing()
    arguments = folder, config, (), statistics
    state, actions = missing.read(read_prompted_normalizers, *arguments, default=IDENTITIES)
    missing.read(_tokenizer, contents, config)
    missing.read(_names, contents, config)
    notes = ["it cannot write text: the layers for that were removed"]
    notes += delay_notes(contents, config.horizon, missing)
    return lerobot_description(contents, config, state, actions, missing, notes, statistics)


def weights(contents: Contents) -> Weights:
    """See formats.Weights; with lerobot's names."""
    names = _names(contents, read_smolvla_config(contents))
    return renamed(contents.table, {name: name for name in names})


FORMAT = Format("SmolVLA", holds, describe, load, weights)
