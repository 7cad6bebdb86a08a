"""What a format of checkpoints is: how it is recognised, described and loaded, by which choices.

A format is recognised by what is in a folder, never by the folder's name: fields of `config.json`, names of
tensors, files of a JAX checkpoint. The table of all formats is in extensions.py; a new one is a line there,
or an entry point of another package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.shards import INDEX, SINGLE, Stored, inside, read_table
from vla_accel_ros.models.checkpoints.streaming import Progress, read, reading_order
from vla_accel_ros.models.flow.committed import FIELD
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.processing.norm_stats import read_json

OURS = "vla_accel_ros"
"""The field of config.json with a model's sizes; `vla convert` writes it, and a trainer of ours."""

DTYPES = (torch.float32, torch.bfloat16)

_Sizes = TypeVar("_Sizes")


@dataclass(frozen=True)
class Contents:
    """A folder before anybody knows what it is: its config.json ({} without one), and the tensors of its
    safetensors ({} without any)."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Stored] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: str | Path) -> Contents:
        """Raises ValueError if it is no folder, or a file of it is broken or leads out of it."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; give the checkpoint's folder.")
        file = folder / "config.json"
        config = read_json(inside(folder, file)) if file.is_file() else {}
        has = any((folder / name).is_file() for name in (SINGLE, INDEX))
        return cls(folder, config, read_table(folder) if has else {})

    @property
    def table(self) -> Mapping[str, Stored]:
        """The tensors. Raises ValueError, saying what is there instead, if there are none."""
        return self.tensors or read_table(self.folder)

    @property
    def weights(self) -> Path:
        """What errors about the weights name: the file, or the folder of several."""
        single = self.folder / SINGLE
        return single if single.is_file() else self.folder

    @property
    def kind(self) -> str:
        """What our own sizes say that it is, empty without them."""
        ours = self.config.get(OURS)
        return str(ours.get("kind", "")) if isinstance(ours, dict) else ""

    def whole(self, name: str, default: int | None = None) -> int:
        """A field of config.json that counts something. Raises ValueError for anything else."""
        value = self.config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"{self.folder / 'config.json'}: {name} is {value!r}; it must be a whole number from 1."
            )
        return value


class Weights(NamedTuple):
    """What a model of ours takes of a folder, as it is stored. stored: by the names that `vla convert` gives
    them; values: are read when they are asked for. fused: those that the engine reads as one, see
    models.layers.fused. time_rule: of the flow whose constants can be folded, empty where nothing can."""

    stored: Mapping[str, Stored]
    values: Iterator[tuple[str, Tensor]]
    fused: Mapping[str, tuple[str, ...]] = {}
    time_rule: str = ""


@dataclass(frozen=True)
class Options:
    """What whoever loads may choose; see checkpoint.load_policy. model: the network that is there already, of
    which no weight is read; see checkpoint.with_statistics."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    delta_mask: np.ndarray | None = None
    statistics: str | None = None
    normalize: bool = True
    prompt_state: str = "auto"
    progress: Progress | None = None
    model: Any = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype}; use torch.float32 or torch.bfloat16.")

    def network(self, config: object, where: str, read: Callable[[], Any]) -> Any:
        """The network of a folder whose sizes are `config`: the one that is there, or what `read` reads.

        Raises ValueError if the one that is there has other sizes.
        """
        if self.model is not None and self.model.config != config:
            raise ValueError(
                f"{where} is of a network of other sizes or cameras than the policy's; give the folder that "
                "the policy was loaded from, or a copy of it with other statistics."
            )
        return read() if self.model is None else self.model

    def actions(self, relative: np.ndarray | None, width: int, where: str) -> np.ndarray:
        """bool [D], which of a policy's actions are relative to the state.

        relative: what the checkpoint says of it, None if nothing. width: D if nobody says.
        Raises ValueError if the checkpoint and delta_mask differ.
        """
        if self.delta_mask is None:
            return np.zeros(width, np.bool_) if relative is None else relative
        given = np.asarray(self.delta_mask)
        if relative is not None and given.shape == relative.shape and (given != relative).any():
            odd = int(np.flatnonzero(given != relative)[0])
            trained, asked = ("relative", "absolute") if relative[odd] else ("absolute", "relative")
            raise ValueError(
                f"{where} was trained with action {odd} {trained} to the joints, not {asked}; in the "
                f"contract write action: {'delta' if relative[odd] else 'absolute'}."
            )
        return given


@dataclass(frozen=True)
class Format:
    """name: who writes such folders. holds: whether a folder is one. describe: from the small files; the text
    names the statistics where there are several. load and weights: raise ValueError, one sentence, for what
    does not fit."""

    name: str
    holds: Callable[[Contents], bool]
    describe: Callable[[Contents, str | None], Description]
    load: Callable[[Contents, Options], AnyPolicy]
    weights: Callable[[Contents], Weights]


def read_sizes(contents: Contents, own: Callable[[Any], _Sizes], infer: Callable[..., _Sizes]) -> _Sizes:
    """Our sizes in config.json, as `own` reads them, or else what `infer` makes of the tensors' shapes and
    config.json. Raises ValueError naming the file."""
    ours = contents.config.get(OURS)
    try:
        if ours is not None:
            return own(ours)
        return infer({name: stored.shape for name, stored in contents.table.items()}, contents.config)
    except (TypeError, ValueError) as error:
        field = "" if ours is None else f", field {OURS}"
        raise ValueError(f"{contents.folder / 'config.json'}{field}: {error}") from error


def renamed(
    table: Mapping[str, Stored],
    names: Mapping[str, str],
    fused: Mapping[str, tuple[str, ...]] | None = None,
    time_rule: str = "",
) -> Weights:
    """The tensors that are keys of `names`, under the names that are its values; see Weights."""
    order = reading_order(table, names)
    stored = {names[name]: table[name] for name in order}
    values = ((names[name], value) for name, value in read(table, order))
    return Weights(stored, values, fused or {}, time_rule)


def trained_delay(contents: Contents, horizon: int) -> int:
    """Most committed actions that its policy was trained to be given, which any format of a flow policy says
    in the same field of config.json; 0 if it says nothing. See models.flow.committed.

    Raises ValueError, naming the file, for what is no number below the horizon.
    """
    value = contents.config.get(FIELD, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < horizon:
        raise ValueError(
            f"{contents.folder / 'config.json'}: {FIELD} is {value!r}; it must be a whole number from 0 to "
            f"below the chunk's {horizon} actions."
        )
    return value


def delay_notes(contents: Contents, horizon: int, missing: Missing) -> list[str]:
    """A note for a Description if there is such a delay; a wrong one is missing."""
    delay = missing.read(trained_delay, contents, horizon, default=0)
    return [f"trained to be given up to {delay} committed actions (rtc_method: trained)"] if delay else []
