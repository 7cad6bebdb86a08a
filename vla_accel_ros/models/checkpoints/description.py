"""What a checkpoint folder says of itself, from its small files and the headers of its weights.

No weight is read for it. `vla inspect` prints it, and a contract is compared with it before anything is
loaded. What is missing is a list and no error, so that a folder that cannot be loaded can still be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.models.checkpoints.shards import Stored
from vla_accel_ros.models.processing.conventions import Normalizer

NOTHING = np.zeros((2, 0))


class Sizes(Protocol):
    """What the sizes of every family's network tell; a flow's also state_dim, action_dim and horizon."""

    @property
    def kind(self) -> str: ...
    @property
    def image_names(self) -> tuple[str, ...]: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Description:
    """format: who wrote the folder, and how. config: the network's sizes. tensors: of the weights' files.

    state, actions: where the numbers were in training, float64 [2, D] lowest and highest in the policy's
    units, D = 0 without statistics; normalisation: how they are mapped, in words.
    relative: bool [D], which actions are relative to the state, None if the folder does not say.
    twist: it moves a hand, as a rule. any_camera: it takes one image of any name.
    statistics: names to choose from where there are several. notes: what one should know before trusting it.
    missing: a sentence for everything that keeps it from being loaded.
    """

    folder: Path
    format: str
    config: Sizes
    tensors: Mapping[str, Stored]
    state: np.ndarray = field(default_factory=lambda: NOTHING)
    actions: np.ndarray = field(default_factory=lambda: NOTHING)
    normalisation: str = "none"
    relative: np.ndarray | None = None
    twist: bool = False
    any_camera: bool = False
    statistics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def state_dim(self) -> int:
        """Most numbers of a state, 0 if the network takes none."""
        return int(getattr(self.config, "state_dim", 0))

    @property
    def action_dim(self) -> int:
        """Most numbers of an action."""
        return int(getattr(self.config, "action_dim", 0)) or self.actions.shape[1]

    @property
    def horizon(self) -> int:
        """Actions in a chunk."""
        return int(getattr(self.config, "horizon", 1))

    @property
    def bytes(self) -> int:
        """Size of the weights as they are stored."""
        return sum(stored.bytes for stored in self.tensors.values())


class Missing:
    """Collects the sentences of what cannot be read, instead of ending at the first."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def read(self, reader: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
        """What the reader returns; the default, and its sentence noted, if it raises ValueError."""
        try:
            return reader(*arguments)
        except ValueError as error:
            self.sentences.append(str(error))
            return default


def trained_range(normalizer: Normalizer) -> np.ndarray:
    """float64 [2, D]: quantiles become -1 and 1; of mean and deviation, two are about the same share."""
    reach = 1.0 if normalizer.offset else 2.0
    return normalizer.unnormalize(np.repeat([[-reach], [reach]], normalizer.size, axis=1))
