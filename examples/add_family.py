"""A model family: a folder whose config.json says {"type": "tiny"} is loaded as any other checkpoint.

The network of this made-up family is pi0's, stored under other names and in numbers that need no statistics.
A family of its own also brings its network: plain torch in a WordedPolicy (vla_accel_ros/models/policies.py).

pyproject.toml beside this file names FORMAT; `pip install ./examples` makes it known to load_policy, the
nodes and every `vla` command. Nothing in a checkpoint is executed, and nothing pickled is opened.
"""

from __future__ import annotations

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


def holds(contents: Contents) -> bool:
    """Whether a folder is of this family. Others are asked, too: be strict."""
    return contents.config.get("type") == "tiny"


def config(contents: Contents) -> PiConfig:
    return PiConfig.from_json(contents.config["sizes"])


def describe(contents: Contents, statistics: str | None) -> Description:
    """What the small files say; no weight is read. `vla inspect` prints it."""
    return Description(contents.folder, "tiny", config(contents), contents.table)


def names(contents: Contents) -> dict[str, str]:
    """The file's name of each tensor -> ours. Every name, shape and dtype is compared before a weight is
    read: raises ValueError, with one sentence, if one does not fit."""
    with on_meta():  # shapes without memory
        parameters = dict(Pi(config(contents)).named_parameters())
    shapes = {f"tiny.{name}": tuple(parameter.shape) for name, parameter in parameters.items()}
    check_table(contents.table, shapes, lambda name: False, contents.weights)
    return {f"tiny.{name}": name for name in parameters}


def network(contents: Contents, options: Options) -> Pi:
    """The model on its device, filled tensor by tensor: the host never holds all weights at once."""
    ours = names(contents)
    with on_meta():
        model = Pi(config(contents))
    weights = ((ours[name], tensor) for name, tensor in read(contents.table, ours))
    size = sum(contents.table[name].bytes for name in ours)
    fill(model, weights, options.device, size, str(contents.folder), options.progress)
    return model.requires_grad_(False).eval()


def load(contents: Contents, options: Options) -> Policy:
    """The policy. `options.network` returns the model of another robot if it is loaded already."""
    sizes, folder = config(contents), str(contents.folder)
    relative = options.actions(np.zeros(sizes.action_dim, np.bool_), sizes.action_dim, folder)
    model = options.network(sizes, folder, lambda: network(contents, options))
    identity = Normalizer.identity()  # a family with statistics makes normalizers from them
    return Policy(model, load_tokenizer(contents.folder, sizes.vocab), identity, identity, relative)


def weights(contents: Contents) -> Weights:
    """What `vla convert` writes."""
    return renamed(contents.table, names(contents))


FORMAT = Format("tiny", holds, describe, load, weights)
