"""What a checkpoint folder says of itself, from its small files and the headers of its weights.

No weight is read. `vla inspect` prints the description, and a contract is compared with it before anything is
loaded. Missing parts are collected in a list instead of raised, so that an incomplete folder can be
inspected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.models.checkpoints.shards import Stored
from vla_accel_ros.models.processing.conventions import STILL

NOTHING = np.zeros((2, 0))


class Sizes(Protocol):
    """What the sizes of every network have; those of a flow policy also have state_dim, action_dim and
    horizon."""

    @property
    def kind(self) -> str: ...
    @property
    def image_names(self) -> tuple[str, ...]: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Group:
    """Numbers of a state and an action that belong together. hand: what a contract says of them if they are
    the pose of a hand, by key. pair: the state has a second finger."""

    name: str
    size: int
    hand: Mapping[str, str] = field(default_factory=dict)
    pair: bool = False


@dataclass(frozen=True)
class Description:
    """format: what wrote the folder. config: the network's sizes. tensors: of the weight files.

    state, actions: the range in training, float64 [2, D] lowest and highest in the policy's units, D = 0
    without statistics. normalisation: how that range is mapped, in words.
    state_moments, action_moments: mean and standard deviation in training, float64 [2, D], [2, 0] if unknown.
    relative: bool [D], which actions are relative to the state; None if the folder does not say.
    camera_sources: name of an image in the data it was trained on, where another one than the policy's.
    joint_names: of the states and actions there, where known.
    groups: of states and actions alike, in order, where a hand's pose is among them.
    other_actions: what actions are where they are known not to be targets of joints, in words.
    twist: actions usually move an end effector. any_camera: the policy takes one image of any name.
    statistics: the names to choose from where there are several. notes: warnings to read before trusting it.
    trained_as: the known settings of its training, to be kept by a conversion. unknown: those that nobody has
    said. assumed: a sentence if some were taken as usual. missing: one sentence for everything that prevents
    loading; whether actions are relative is no such thing, since a contract says it.
    """

    folder: Path
    format: str
    config: Sizes
    tensors: Mapping[str, Stored]
    state: np.ndarray = field(default_factory=lambda: NOTHING)
    actions: np.ndarray = field(default_factory=lambda: NOTHING)
    normalisation: str = "none"
    state_moments: np.ndarray = field(default_factory=lambda: NOTHING)
    action_moments: np.ndarray = field(default_factory=lambda: NOTHING)
    relative: np.ndarray | None = None
    camera_sources: Mapping[str, str] = field(default_factory=dict)
    joint_names: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    other_actions: str = ""
    twist: bool = False
    any_camera: bool = False
    statistics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trained_as: Mapping[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    assumed: str = ""
    missing: tuple[str, ...] = ()

    @property
    def state_dim(self) -> int:
        """Largest size of a state vector; 0 if the network takes no state."""
        return int(getattr(self.config, "state_dim", 0))

    @property
    def action_dim(self) -> int:
        """Largest size of an action."""
        return int(getattr(self.config, "action_dim", 0)) or self.actions.shape[1]

    @property
    def horizon(self) -> int:
        """Actions in a chunk."""
        return int(getattr(self.config, "horizon", 1))

    @property
    def bytes(self) -> int:
        """Size of the stored weights in bytes."""
        return sum(stored.bytes for stored in self.tensors.values())


class Missing:
    """Collects the error sentences of several readers, instead of stopping at the first."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def read(self, reader: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
        """Return the reader's result. If it raises ValueError, record its sentence and return the default."""
        try:
            return reader(*arguments)
        except ValueError as error:
            if str(error) not in self.sentences:
                self.sentences.append(str(error))
            return default

    def raise_all(self) -> None:
        """Raise one ValueError with all sentences, if there are any."""
        if self.sentences:
            raise ValueError(" ".join(self.sentences))


def unpadded(trained: np.ndarray) -> int:
    """Return how many columns [2, D] of a range have statistics of their own: all but the last ones that are
    zero, with which openpi fills a state or an action up to the network's size."""
    moving = np.flatnonzero((np.abs(trained) > STILL).any(axis=0))
    return int(moving[-1]) + 1 if len(moving) else trained.shape[1]
