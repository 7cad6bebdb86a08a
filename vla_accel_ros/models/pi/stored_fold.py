"""What folding computes (folding.py), kept in a file beside the weights, and when that file may be used.

`folded.safetensors` says in its header for which steps, time rule and dtype it was computed, and by sums of
what and whether it is whole: `of` is of every parameter that went in, `sums` of every tensor that came out.
They are over the numbers as they are in a device's memory, so looking costs it one pass. What was computed
for other settings or from other numbers (a file of weights that was replaced, a model that was trained
further) is not used but computed; a damaged file is refused. It is written a layer at a time.

Where the file is used the fold is the same to the bit on every device: a device's own would round
differently.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vla_accel_ros.models.checkpoints.safetensors_writer import DTYPES, Layout, nbytes, write_safetensors
from vla_accel_ros.models.checkpoints.shards import inside, open_weights, read_headers, read_table
from vla_accel_ros.models.checkpoints.streaming import Progress, fill, read
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.flow.sampling import TIME_RULES
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.layers.gemma import Layer
from vla_accel_ros.models.pi.folded import Constants, FoldedLayer, Key, Modulation
from vla_accel_ros.models.pi.folding import Folding
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import ROOT, empty_pi

FOLDED = "folded.safetensors"
SAID = "vla_accel_ros.folded"
"""The header's metadata with the key, as JSON."""
TABLES = tuple(Modulation.__dataclass_fields__)
ENDS = ("in_weight", "in_bias", "out_weight", "out_bias")
SUMS, OF = "sums", "of"
LAYERS = ROOT + "gemma_expert.model.layers."
MOST_STEPS = 1000
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MEND = "remove it, and it is computed while loading, or convert the checkpoint again"

_BLOCK, _ODD = 1 << 19, 0x1E3779B97F4A7C15  # part of the format: with others, sums are others
_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class StoredFold:
    """A file of constants. layout: its tensors; see fold_layout."""

    file: Path
    key: Key
    layout: Layout

    @classmethod
    def find(cls, folder: Path, config: PiConfig) -> StoredFold | None:
        """That of a folder, None without one. Raises ValueError unless it is a whole one for a model of these
        sizes; numbers are looked at when they are read."""
        file = folder / FOLDED
        if not file.is_file():
            return None
        table = read_headers(inside(folder, file))
        with open_weights(file) as opened:
            key = _key((opened.metadata() or {}).get(SAID, ""), file)
        layout = fold_layout(config, key)
        if layout != {name: (stored.dtype, stored.shape) for name, stored in table.items()}:
            raise ValueError(f"{file} does not fit a {config.kind} of these sizes; {MEND}.")
        return cls(file, key, layout)

    @property
    def bytes(self) -> int:
        """Of its tensors."""
        return sum(nbytes(entry) for entry in self.layout.values())

    def fits(self, model: Pi) -> bool:
        """Whether it was computed from the numbers that this model has; says so once if they are others."""
        if str(model.expert.dtype).removeprefix("torch.") != self.key.dtype:
            return False
        parameters = ((name, value) for name, value in model.named_parameters() if is_folded(name))
        if torch.equal(_together(sums_of(parameters)), self._stored([OF])[OF]):
            return True
        warnings.warn(
            f"{self.file} was computed from other weights than the model has, so it is not used; if those of "
            "its folder were replaced, convert the checkpoint again.",
            stacklevel=2,
        )
        return False

    def constants(self, model: Pi) -> Constants:
        """On the model's device. Raises ValueError if the file is damaged."""
        tables = [f"modulation.{name}" for name in TABLES] if model.config.kind == "pi05" else []
        found = self._read([*tables, *ENDS], model)
        modulation = Modulation(*(found[name] for name in tables)) if tables else None
        return Constants(modulation, *(found[name] for name in ENDS))

    def layer(self, index: int, model: Pi, fused: FoldedLayer) -> FoldedLayer:
        """Of a pi0: a layer with the norms in its matrices. fused: without them. Raises as constants."""
        qkv, gate_up = f"layers.{index}.qkv", f"layers.{index}.gate_up"
        found = self._read([qkv, gate_up], model)
        return replace(fused, qkv=found[qkv], gate_up=found[gate_up])

    def _read(self, names: Sequence[str], model: Pi) -> dict[str, Tensor]:
        """Tensors on the model's device, compared with their sums."""
        stored = self._stored([SUMS, *names])
        said = dict(zip(self.layout, stored.pop(SUMS).tolist(), strict=True))
        values = {name: value.to(model.action_in_proj.weight.device) for name, value in stored.items()}
        for name, value in sums_of(values.items()).items():
            if value != said[name]:
                raise self._damaged(name)
        return values

    def _stored(self, names: Sequence[str]) -> dict[str, Tensor]:
        try:
            with open_weights(self.file) as opened:
                values: dict[str, Tensor] = {name: opened.get_tensor(name).clone() for name in names}
        except SafetensorError as error:
            raise self._damaged(names[-1]) from error
        for name, value in values.items():
            if (DTYPES.get(value.dtype), tuple(value.shape)) != self.layout[name]:
                raise self._damaged(name)
        return values

    def _damaged(self, name: str) -> ValueError:
        return ValueError(f"{self.file} is damaged: {name} is not what was computed; {MEND}.")


def write_fold(folder: Path, config: PiConfig, key: Key, progress: Progress | None = None) -> str:
    """Write the file of a folder of ours, of the weights in it; returns its SHA-256.

    No more than a layer of the model is in memory. Raises ValueError for a key that cannot be, and for
    weights that are not finite in its dtype.
    """
    table, model = read_table(folder), empty_pi(config, TORCH[key.dtype])
    folding, fused, layers = Folding(model, key.steps, key.time_rule), fused_parts(model), model.expert.layers
    layout, sums = fold_layout(config, key), {}
    taken: dict[str, int] = {}

    def load(names: list[str]) -> None:
        total = sum(table[name].bytes for name in names)
        fill(model, read(table, names), torch.device("cpu"), total, str(folder), fused=fused)
        taken.update(sums_of((name, model.get_parameter(name)) for name in names))

    def computed() -> Iterator[tuple[str, Tensor]]:
        load([name for name in table if is_folded(name) and not name.startswith(LAYERS)])
        for index, layer in enumerate(layers):
            load([name for name in table if name.startswith(f"{LAYERS}{index}.")])
            folded = folding.layer(cast(Layer, layer))
            if config.kind == "pi0":
                yield f"layers.{index}.qkv", folded.qkv
                yield f"layers.{index}.gate_up", folded.gate_up
            layers[index] = nn.Identity()
        yield from named_constants(folding.constants()).items()

    def values() -> Iterator[tuple[str, Tensor]]:
        for name, value in computed():
            sums.update(sums_of([(name, value)]))
            yield name, value
        yield SUMS, torch.tensor([sums.get(name, 0) for name in layout])
        yield OF, _together(taken)

    said = {SAID: json.dumps(key._asdict())}
    return write_safetensors(folder / FOLDED, layout, values(), said, progress)


def fold_layout(config: PiConfig, key: Key) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, types and shapes of the tensors in such a file, in their order; see folded.Expert."""
    sizes, steps = config.expert, key.steps
    width, actions = sizes.width, config.action_dim
    qkv, gate_up = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim, 2 * sizes.mlp
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    if config.kind == "pi0":
        dtype = DTYPES[TORCH[key.dtype]]
        for index in range(sizes.depth):
            layout[f"layers.{index}.qkv"] = (dtype, (qkv, width))
            layout[f"layers.{index}.gate_up"] = (dtype, (gate_up, width))
    else:
        wide = {"attention_bias": qkv, "mlp_bias": gate_up}
        for name in TABLES:
            shape = (steps, width) if name == "final" else (steps, sizes.depth, wide.get(name, width))
            layout[f"modulation.{name}"] = ("F32", shape)
    ends = ((width, actions), (steps, width), (actions, width), (steps, actions))
    layout |= {name: ("F32", shape) for name, shape in zip(ENDS, ends, strict=True)}
    return layout | {SUMS: ("I64", (len(layout) + 2,)), OF: ("I64", (4,))}


def named_constants(constants: Constants) -> dict[str, Tensor]:
    """Under their names in the file."""
    tensors = {name: value for name, value in vars(constants).items() if isinstance(value, Tensor)}
    if constants.modulation is None:
        return tensors
    return {f"modulation.{name}": value for name, value in vars(constants.modulation).items()} | tensors


def is_folded(name: str) -> bool:
    """Whether folding reads the parameter, or a neighbour of it: all but the prefix's."""
    return not name.startswith(ROOT + "paligemma.")


def sums_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """64 bits of each that any one changed number changes for certain, whatever the device: the bits of the
    numbers, each times an odd number of its place. The device is waited for once."""
    names, sums = [], []
    places: dict[torch.device, Tensor] = {}
    for name, value in tensors:
        if value.device not in places:
            places[value.device] = torch.arange(_BLOCK, device=value.device) * _ODD | 1
        names.append(name)
        sums.append(_sum(value, places[value.device]))
    return dict(zip(names, torch.stack(sums).tolist(), strict=True)) if names else {}


def _together(sums: Mapping[str, int]) -> Tensor:
    """int64 [4] for many sums."""
    lines = "".join(f"{name} {value}\n" for name, value in sorted(sums.items()))
    digest = hashlib.sha256(lines.encode()).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int64).clone()


@torch.no_grad()
def _sum(value: Tensor, places: Tensor) -> Tensor:
    bits = value.detach().contiguous().reshape(-1).view(_WIDTH[value.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for block in bits.split(len(places)):
        total = total * _ODD + (block.long() * places[: len(block)]).sum()
    return total


def _key(text: str, file: Path) -> Key:
    """What the header says. Raises ValueError for anything else."""
    try:
        key = Key(**json.loads(text))
        whole = (
            isinstance(key.steps, int) and not isinstance(key.steps, bool) and 1 <= key.steps <= MOST_STEPS
        )
        right = whole and key.time_rule in TIME_RULES and key.dtype in TORCH
    except (ValueError, TypeError, RecursionError):
        right = False
    if not right:
        raise ValueError(f"{file} does not say in its header what it was computed for; {MEND}.")
    return key
