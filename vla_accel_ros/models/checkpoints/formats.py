"""What a format of checkpoints is: how it is recognised, described and loaded.

A format is recognised by what is in a folder, never by the folder's name: fields of `config.json`, names of
tensors, files of a JAX checkpoint. The table of all formats is in extensions.py; a new one is a line there,
or an entry point of another package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.options import Options
from vla_accel_ros.models.checkpoints.shards import INDEX, SINGLE, Stored, inside, read_table
from vla_accel_ros.models.checkpoints.streaming import read, reading_order
from vla_accel_ros.models.flow.committed import read_trained_delay
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.processing.norm_stats import read_json

OURS = "vla_accel_ros"
"""The field of config.json with a model's sizes; `vla convert` writes it, and a trainer of ours."""

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
    """How many committed actions its policy may be given, which any format of a flow policy says in the same
    field of config.json; see models.flow.committed.read_trained_delay. Errors name the file."""
    try:
        return read_trained_delay(contents.config, horizon)
    except ValueError as error:
        raise ValueError(f"{contents.folder / 'config.json'}: {error}") from error


def delay_notes(contents: Contents, horizon: int, missing: Missing) -> list[str]:
    """A note for a Description if there is such a delay; a wrong one is missing."""
    delay = missing.read(trained_delay, contents, horizon, default=0)
    return [f"trained to be given up to {delay} committed actions (rtc_method: trained)"] if delay else []
