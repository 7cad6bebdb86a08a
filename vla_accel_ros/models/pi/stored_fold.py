"""Folded constants (folding.py) in a file beside the weights, and the checks before they are used.

The header of `folded.safetensors` names the steps, time rule and dtype. Two checksums guard it: `of` covers
every parameter that went in, `sums` every tensor that came out. They are computed on the device in one pass.
A file for other settings or other numbers (replaced weights, a model trained further) is ignored and the fold
is computed; a damaged file is refused. The file is written one layer at a time.

With the file, the fold is bit for bit the same on every device; computed on the device, it would round
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
"""Metadata key of the header; its value is the Key as JSON."""
TABLES = tuple(Modulation.__dataclass_fields__)
ENDS = ("in_weight", "in_bias", "out_weight", "out_bias")
SUMS, OF = "sums", "of"
LAYERS = ROOT + "gemma_expert.model.layers."
MOST_STEPS = 1000
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MEND = "remove it, and it is computed while loading, or convert the checkpoint again"

_BLOCK, _ODD = 1 << 19, 0x1E3779B97F4A7C15  # part of the format: other values give other sums
_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class StoredFold:
    """A file of folded constants. layout: its tensors; see fold_layout."""

    file: Path
    key: Key
    layout: Layout

    @classmethod
    def find(cls, folder: Path, config: PiConfig) -> StoredFold | None:
        """Return the fold of a folder, None without one. Raises ValueError unless it is complete and fits
        these sizes; its numbers are checked when they are read."""
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
        """Size of its tensors."""
        return sum(nbytes(entry) for entry in self.layout.values())

    def fits(self, model: Pi) -> bool:
        """Return whether it was computed from this model's numbers; warns if not."""
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
        """Return the constants on the model's device. Raises ValueError if the file is damaged."""
        tables = [f"modulation.{name}" for name in TABLES] if model.config.kind == "pi05" else []
        tensors = self._read([*tables, *ENDS], model)
        modulation = Modulation(*(tensors[name] for name in tables)) if tables else None
        return Constants(modulation, *(tensors[name] for name in ENDS))

    def layer(self, index: int, model: Pi, fused: FoldedLayer) -> FoldedLayer:
        """Return a layer of pi0 with the norms folded in. fused: the layer without them. Raises as
        constants."""
        qkv, gate_up = f"layers.{index}.qkv", f"layers.{index}.gate_up"
        tensors = self._read([qkv, gate_up], model)
        return replace(fused, qkv=tensors[qkv], gate_up=tensors[gate_up])

    def _read(self, names: Sequence[str], model: Pi) -> dict[str, Tensor]:
        """Return tensors on the model's device, after checking their sums."""
        stored = self._stored([SUMS, *names])
        sums = dict(zip(self.layout, stored.pop(SUMS).tolist(), strict=True))
        values = {name: value.to(model.action_in_proj.weight.device) for name, value in stored.items()}
        for name, value in sums_of(values.items()).items():
            if value != sums[name]:
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
    """Compute and write the fold of the weights in a converted folder; returns its SHA-256.

    At most one layer of the model is in memory. Raises ValueError if the key is invalid, or if a weight is
    not finite in the key's dtype.
    """
    table, model = read_table(folder), empty_pi(config, TORCH[key.dtype])
    folding, fused, layers = Folding(model, key.steps, key.time_rule), fused_parts(model), model.expert.layers
    layout, sums = fold_layout(config, key), {}
    weight_sums: dict[str, int] = {}

    def load(names: list[str]) -> None:
        total = sum(table[name].bytes for name in names)
        fill(model, read(table, names), torch.device("cpu"), total, str(folder), fused=fused)
        weight_sums.update(sums_of((name, model.get_parameter(name)) for name in names))

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
        yield OF, _together(weight_sums)

    metadata = {SAID: json.dumps(key._asdict())}
    return write_safetensors(folder / FOLDED, layout, values(), metadata, progress)


def fold_layout(config: PiConfig, key: Key) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return names, dtypes and shapes of the tensors in such a file, in order; see folded.Expert."""
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
    """Return the constants by their names in the file."""
    tensors = {name: value for name, value in vars(constants).items() if isinstance(value, Tensor)}
    if constants.modulation is None:
        return tensors
    return {f"modulation.{name}": value for name, value in vars(constants.modulation).items()} | tensors


def is_folded(name: str) -> bool:
    """Return whether the checksum covers a parameter: all but the prefix's."""
    return not name.startswith(ROOT + "paligemma.")


def sums_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Return a 64-bit checksum of each tensor: its bits, each times an odd number for its place, so that any
    single changed number changes it on every device. Synchronises with the device once."""
    names, sums = [], []
    places: dict[torch.device, Tensor] = {}
    for name, value in tensors:
        if value.device not in places:
            places[value.device] = torch.arange(_BLOCK, device=value.device) * _ODD | 1
        names.append(name)
        sums.append(_sum(value, places[value.device]))
    return dict(zip(names, torch.stack(sums).tolist(), strict=True)) if names else {}


def _together(sums: Mapping[str, int]) -> Tensor:
    """Return int64 [4]: the SHA-256 of many sums."""
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
    """Return the key in the header. Raises ValueError if it is malformed."""
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
