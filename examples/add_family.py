"""A model family: a folder whose config.json says {"type": "tiny"} is loaded as any other checkpoint.

The network of this made-up family is pi0's, stored under other names and in numbers that need no statistics.
Its policy declares micro-requests (vla_accel_ros/models/micro_requests.py) and has a method for each.

pyproject.toml beside this file names FORMAT; `pip install ./examples` makes it known to load_policy, the
nodes and every `vla` command. Nothing in a checkpoint is executed, and nothing pickled is opened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.checkpoints.formats import (
    Contents,
    Format,
    Options,
    Weights,
    filled,
    fitting,
    renamed,
)
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.text.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Tiny(Policy):
    """Its keys and values lie in the engine's pool; what else chunks read needs its largest shape."""

    @property
    def chain(self) -> Chain:
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (Leaf("seen"),)),
                MicroRequest("prefill", ("seen", "words"), (Leaf("kv"),)),
                MicroRequest("denoise", ("x", "t", "kv", "state"), (Leaf("actions"),), kept="step"),
            )
        )

    def encode(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"seen": self.model.encode(pixels).flatten(0, 1)}

    def prefill(self, seen: Tensor, words: Tensor) -> dict[str, KV]:
        return {"kv": self.model.prefix(self.join(seen, words))[1]}

    def denoise(self, x: Tensor, t: Tensor, kv: KV, state: Tensor | None = None) -> Tensor:
        return self.model.velocity(x, t, state, kv)


def holds(contents: Contents) -> bool:
    """Whether a folder is of this family. Others are asked, too: be strict."""
    return contents.config.get("type") == "tiny"


def config(contents: Contents) -> PiConfig:
    return PiConfig.from_json(contents.config["sizes"])


def describe(contents: Contents, statistics: str | None) -> Description:
    """What `vla inspect` prints; no weight is read."""
    return Description(contents.folder, "tiny", config(contents), contents.table)


def names(contents: Contents) -> dict[str, str]:
    """The file's name of each tensor -> ours. Every name, shape and dtype is compared before a weight is
    read."""
    model = empty(Pi, config(contents))  # shapes without memory
    return fitting(model, contents.table, contents.weights, lambda name: f"tiny.{name}")


def network(contents: Contents, options: Options) -> Pi:
    """The model on its device, filled tensor by tensor: the host never holds all weights at once."""
    return filled(empty(Pi, config(contents)), contents.table, names(contents), contents.weights, options)


def load(contents: Contents, options: Options) -> Tiny:
    """The policy. `options.network` returns the model of another robot if it is loaded already."""
    sizes, folder = config(contents), str(contents.folder)
    relative = options.actions(np.zeros(sizes.action_dim, np.bool_), sizes.action_dim, folder)
    model = options.network(sizes, folder, lambda: network(contents, options))
    identity = Normalizer.identity()  # a family with statistics makes normalizers from them
    return Tiny(model, load_tokenizer(contents.folder, sizes.vocab), identity, identity, relative)


def weights(contents: Contents) -> Weights:
    """What `vla convert` writes."""
    return renamed(contents.table, names(contents))


FORMAT = Format("tiny", holds, describe, load, weights)
