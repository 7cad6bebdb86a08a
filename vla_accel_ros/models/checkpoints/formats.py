"""What a checkpoint format provides: how to recognise, describe and load a folder; and the options of a load.

A format is recognised by a folder's contents, never by its name: fields of `config.json`, names of tensors,
files of a JAX checkpoint. The table of all formats is in extensions.py; a new format is one line there, or an
entry point of another package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vla_accel_ros.models.checkpoints.description import Description, Missing
from vla_accel_ros.models.checkpoints.fields import OURS
from vla_accel_ros.models.checkpoints.shards import (
    INDEX,
    SINGLE,
    Stored,
    check_merged,
    check_table,
    inside,
    read_table,
)
from vla_accel_ros.models.checkpoints.streaming import LayerLoaded, Progress, fill, read, reading_order
from vla_accel_ros.models.config import TRAINED_AS
from vla_accel_ros.models.flow.committed import FIELD
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.processing.conventions import IDENTITIES, Normalizer

DTYPES = (torch.float32, torch.bfloat16)

_Sizes = TypeVar("_Sizes")
_Network = TypeVar("_Network", bound=nn.Module)


@dataclass(frozen=True)
class Contents:
    """An unidentified folder: its config.json ({} without one), and the tensors in its safetensors files ({}
    without any). trained_as, prompt_state: the user's word for settings of its training, see
    checkpoint.load_policy."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Stored] = field(default_factory=dict)
    trained_as: str = ""
    prompt_state: str = "auto"

    @classmethod
    def of(cls, folder: str | Path, trained_as: str = "", prompt_state: str = "auto") -> Contents:
        """Read a folder's headers. Raises ValueError if it is no folder, or if a file is broken or outside of
        it."""
        folder = Path(folder)
        for link in (folder, *folder.parents):
            if link.is_symlink() and not link.exists():
                raise ValueError(
                    f"{link} is a link to {link.readlink()}, which is not there; copy that, too, or give the "
                    f"newest folder in {link.parent}."
                )
        if not folder.is_dir():
            relative = len(folder.parts) == 2 and not folder.is_absolute()
            hub = f" (one of the Hugging Face hub: vla fetch {folder})" if relative else ""
            raise ValueError(f"{folder} is not a folder; give the checkpoint's folder{hub}.")
        file = folder / "config.json"
        config = read_json(inside(folder, file)) if file.is_file() else {}
        has_weights = any((folder / name).is_file() for name in (SINGLE, INDEX))
        return cls(folder, config, read_table(folder) if has_weights else {}, trained_as, prompt_state)

    @property
    def table(self) -> Mapping[str, Stored]:
        """The tensors. Raises ValueError, saying what is there instead, if there are none, or if adapters
        belong to them."""
        check_merged(self.folder, self.tensors)
        return self.tensors or read_table(self.folder)

    @property
    def weights(self) -> Path:
        """The path that errors about weights name: the single file, or the folder if there are several."""
        single = self.folder / SINGLE
        return single if single.is_file() else self.folder

    @property
    def kind(self) -> str:
        """The model kind in our own sizes; empty without them."""
        ours = self.config.get(OURS)
        return str(ours.get("kind", "")) if isinstance(ours, dict) else ""

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a count from config.json. Raises ValueError if it is not a whole number from 1."""
        value = self.config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"{self.folder / 'config.json'}: {name} is {value!r}; it must be a whole number from 1."
            )
        return value


class Weights(NamedTuple):
    """What a model of ours takes from a folder, as stored. stored: by the names that `vla convert` gives
    the tensors. values: read lazily. fused: the parameters that the engine reads as one tensor, see
    models.layers.fused. beside: a further folder whose tokenizer belongs to it."""

    stored: Mapping[str, Stored]
    values: Iterator[tuple[str, Tensor]]
    fused: Mapping[str, tuple[str, ...]] = {}
    beside: Path | None = None


@dataclass(frozen=True)
class Options:
    """The choices of a load; see checkpoint.load_policy. model: an already loaded network, so that no weight
    is read; see checkpoint.with_statistics."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    delta_mask: np.ndarray | None = None
    statistics: str | None = None
    normalize: bool = True
    progress: Progress | None = None
    model: Any = None
    layer_loaded: LayerLoaded | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype}; use torch.float32 or torch.bfloat16.")

    def network(self, config: object, where: str, read: Callable[[], Any]) -> Any:
        """Return the network of sizes `config`: the one already loaded, or else the result of `read`.

        Raises ValueError if the loaded network has other sizes.
        """
        if self.model is not None and self.model.config != config:
            raise ValueError(
                f"{where} is of a network of other sizes or cameras than the policy's; give the folder that "
                "the policy was loaded from, or a copy of it with other statistics."
            )
        return read() if self.model is None else self.model

    def normalizers(
        self, read: Callable[..., tuple[Normalizer, Normalizer]], *arguments: Any
    ) -> tuple[Normalizer, Normalizer]:
        """Return (state, actions) as `read` does of the arguments and the statistics to use."""
        return read(*arguments, self.statistics) if self.normalize else IDENTITIES

    def actions(self, relative: np.ndarray | None, width: int, where: str) -> np.ndarray:
        """Return bool [D]: which of a policy's actions are relative to the state.

        relative: what the checkpoint says, None if nothing. width: D if neither it nor delta_mask says.
        Raises ValueError if the checkpoint and delta_mask differ.
        """
        if self.delta_mask is None:
            return np.zeros(width, np.bool_) if relative is None else relative
        mask = np.asarray(self.delta_mask)
        if relative is not None and mask.shape == relative.shape and (mask != relative).any():
            odd = int(np.flatnonzero(mask != relative)[0])
            trained, wanted_kind = ("relative", "absolute") if relative[odd] else ("absolute", "relative")
            raise ValueError(
                f"{where} was trained with action {odd} {trained} to the joints, not {wanted_kind}; in the "
                f"contract write action: {'delta' if relative[odd] else 'absolute'}."
            )
        return mask


@dataclass(frozen=True)
class Format:
    """name: the program that writes such folders. holds: whether a folder has this format. describe: from the
    small files; its str argument chooses the statistics where there are several. load and weights: raise
    ValueError, with one sentence, if the folder does not fit. asks: whether its folders lack settings of
    their training, so that Contents.trained_as gives them."""

    name: str
    holds: Callable[[Contents], bool]
    describe: Callable[[Contents, str | None], Description]
    load: Callable[[Contents, Options], AnyPolicy]
    weights: Callable[[Contents], Weights]
    asks: bool = False


def read_sizes(
    contents: Contents,
    own: Callable[[Any], _Sizes],
    infer: Callable[..., _Sizes],
    check: Callable[[Mapping[str, Any]], object],
) -> _Sizes:
    """Return our sizes from config.json, read by `own`, or else inferred by `infer` from the tensor shapes
    and config.json. check: of the other fields of config.json, as `infer` does it. Raises ValueError naming
    the file."""
    ours = contents.config.get(OURS)
    try:
        if ours is None:
            return infer({name: stored.shape for name, stored in contents.table.items()}, contents.config)
        check(contents.config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{contents.folder / 'config.json'}: {error}") from error
    return own_sizes(contents, own)


def own_sizes(contents: Contents, own: Callable[[Any], _Sizes]) -> _Sizes:
    """Return our sizes, which config.json has, read by `own`. Raises ValueError naming the field."""
    try:
        return own(contents.config[OURS])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{contents.folder / 'config.json'}, field {OURS}: {error}") from error


def check_unanswered(contents: Contents, program: str = "") -> None:
    """Raise ValueError if the user gives settings of a training, which the folder has itself. program: which
    wrote it."""
    if contents.trained_as:
        raise ValueError(
            f"{contents.folder}{program and f' ({program})'} has the settings of its training in its own "
            f"files; give no {TRAINED_AS} ({contents.trained_as!r})."
        )


def renamed(
    table: Mapping[str, Stored],
    names: Mapping[str, str],
    fused: Mapping[str, tuple[str, ...]] | None = None,
) -> Weights:
    """Return the tensors named by the keys of `names`, under the names that are its values; see Weights."""
    order = reading_order(table, names)
    stored = {names[name]: table[name] for name in order}
    values = ((names[name], value) for name, value in read(table, order))
    return Weights(stored, values, fused or {})


def fitting(
    model: nn.Module,
    table: Mapping[str, Stored],
    where: Path,
    stored: Callable[[str], str] = str,
    unused: Callable[[str], bool] = lambda name: False,
) -> dict[str, str]:
    """Return the parameter that each tensor of `table` becomes.

    stored: the name of a parameter's tensor. unused: whether a tensor without a parameter may be present.
    where: the folder or file that errors name. Raises one ValueError that lists every difference between the
    tensors and the model.
    """
    parameters = dict(model.named_parameters())
    shapes = {stored(name): tuple(parameter.shape) for name, parameter in parameters.items()}
    check_table(table, shapes, unused, where)
    return {stored(name): name for name in parameters}


def filled(
    model: _Network,
    table: Mapping[str, Stored],
    names: Mapping[str, str],
    where: Path,
    options: Options,
    fused: Mapping[str, Sequence[str]] | None = None,
) -> _Network:
    """Return a model that was on `meta` with its weights, in eval mode and without gradients.

    names: parameter by tensor of `table`. where: the folder or file that errors name. fused: see
    streaming.fill. Raises ValueError naming every parameter that holds a number that is not finite.
    """
    total = sum(table[name].bytes for name in names)
    values = ((names[name], value) for name, value in read(table, names))
    fill(model, values, options.device, total, str(where), options.progress, fused, options.layer_loaded)
    return model.requires_grad_(False).eval()


def action_size(statistics: int, most: int, where: Path) -> int:
    """Return D, the size of an action: that of its statistics, or `most`, the network's, without any. Raises
    ValueError if the statistics have more."""
    if statistics > most:
        raise ValueError(
            f"{where} has statistics of actions with {statistics} numbers, but those of its network have "
            f"{most}; give the statistics of its training."
        )
    return statistics or most


def trained_delay(contents: Contents, horizon: int) -> int:
    """Return the largest number of committed actions that the policy was trained with; 0 if config.json has
    none.

    Every format of a flow policy uses the same field; see models.flow.committed.
    Raises ValueError, naming the file, if the value is not a whole number from 0 to below the horizon.
    """
    value = contents.config.get(FIELD, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < horizon:
        raise ValueError(
            f"{contents.folder / 'config.json'}: {FIELD} is {value!r}; it must be a whole number from 0 to "
            f"below the chunk's {horizon} actions."
        )
    return value


def delay_notes(contents: Contents, horizon: int, missing: Missing) -> list[str]:
    """Return the Description's note about such a delay, if any; an invalid one is added to `missing`."""
    delay = missing.read(trained_delay, contents, horizon, default=0)
    return [f"trained to be given up to {delay} committed actions (rtc_method: trained)"] if delay else []
