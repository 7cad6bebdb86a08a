"""A family that is pi0's network under its own names, in numbers that need no statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.checkpoints.formats import Contents, Format, Options, Weights, renamed
from vla_accel_ros.models.checkpoints.shards import check_table
from vla_accel_ros.models.checkpoints.streaming import fill, on_meta, read
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.text.tokenizer import load_tokenizer

ROOT = "tiny."


def holds(contents: Contents) -> bool:
    """Whether config.json says so."""
    return contents.config.get("type") == "tiny"


def sizes(contents: Contents) -> PiConfig:
    """The network's."""
    return PiConfig.from_json(contents.config["sizes"])


def checked(contents: Contents) -> dict[str, str]:
    """Our parameter's name by the file's; raises ValueError for everything that does not fit."""
    with on_meta():
        parameters = dict(Pi(sizes(contents)).named_parameters())
    shapes = {ROOT + name: tuple(parameter.shape) for name, parameter in parameters.items()}
    check_table(contents.table, shapes, lambda name: False, contents.weights)
    return {ROOT + name: name for name in parameters}


def load(contents: Contents, options: Options) -> Policy:
    """See models.checkpoints.checkpoint.load_policy."""
    config, where = sizes(contents), str(contents.folder)
    mask = options.actions(np.zeros(config.action_dim, np.bool_), config.action_dim, where)
    tokenizer = load_tokenizer(contents.folder, config.vocab)
    model = options.network(config, where, lambda: read_model(contents, options))
    return Policy(model, tokenizer, Normalizer.identity(), Normalizer.identity(), mask)


def read_model(contents: Contents, options: Options) -> Pi:
    """The network with the folder's weights."""
    names = checked(contents)
    with on_meta():
        model = Pi(sizes(contents))
    values = ((names[name], value) for name, value in read(contents.table, names))
    total = sum(contents.table[name].bytes for name in names)
    fill(model, values, options.device, total, str(contents.folder), options.progress)
    return model.requires_grad_(False).eval()


def describe(contents: Contents, statistics: str | None) -> Description:
    """See models.checkpoints.description."""
    return Description(contents.folder, "tiny", Sizes(sizes(contents)), contents.table)


def weights(contents: Contents) -> Weights:
    """See models.checkpoints.formats.Weights."""
    return renamed(contents.table, checked(contents))


class Sizes:
    """The least that a family's sizes tell."""

    kind = "tiny"

    def __init__(self, config: PiConfig) -> None:
        self.image_names, self._config = config.image_names, config

    def to_json(self) -> dict[str, Any]:
        """As in config.json."""
        return self._config.to_json()


FORMAT = Format("tiny", holds, describe, load, weights)
