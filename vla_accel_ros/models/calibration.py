"""Calibration of products with 8-bit activations: statistics of their inputs, in a file beside a checkpoint.

Such products lose most accuracy if a few columns of their input are much larger than the others. For each
product the file holds the largest magnitude of each input column, from which smoothing factors follow
(models.layers.quantized.smoothing), and the relative error of the smoothed product in int8.
Products whose error exceeds the file's limit stay exact. `vla calibrate` writes the file from recorded
observations (tools/calibrate).

Products are named by stack, layer and matrix: "vision.0.fc1", "prefix.17.gate_up", "expert.3.o".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vla_accel_ros.models.layers.few_bits import first_numbers
from vla_accel_ros.models.layers.quantized import W8A8, Weight, quantized, smoothing
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi

FORMAT = "vla_accel_ros calibration 2"
ALPHA = 0.5
"""Smoothing strength (SmoothQuant's alpha): share of the magnitude that moves from activations to weights."""
MOST_ERROR = 0.05
"""Largest relative error at which a product is computed in 8 bits."""
LARGEST, ERROR = ".largest", ".error"
AGAIN = "make it with `vla calibrate`"

Group = tuple[nn.Linear, ...]
"""Projections of one input, which the fast stages compute as one matrix, in the order of its rows."""


def products(model: nn.Module) -> dict[str, Group]:
    """Return the products that can use 8-bit rows, by name. Raises ValueError if the model has none."""
    groups: dict[str, Group] = {}
    if isinstance(model, Pi):
        tower = model.vision
        for index, layer in enumerate(cast(Any, tower.encoder.layers)):
            name, attention = f"vision.{index}", layer.self_attn
            groups[f"{name}.qkv"] = (attention.q_proj, attention.k_proj, attention.v_proj)
            groups[f"{name}.o"] = (attention.out_proj,)
            groups[f"{name}.fc1"], groups[f"{name}.fc2"] = (layer.mlp.fc1,), (layer.mlp.fc2,)
        return groups | _of_stack("prefix", model.language_model) | _of_stack("expert", model.expert)
    if isinstance(model, OpenVLA):
        return _of_stack("prefix", model.stack)
    raise ValueError(f"a {type(model).__name__} has no products of int8 rows; use pi0, pi0.5 or OpenVLA.")


def _of_stack(name: str, stack: nn.Module) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for index, layer in enumerate(cast(Any, stack).layers):
        attention, mlp = layer.self_attn, layer.mlp
        groups[f"{name}.{index}.qkv"] = (attention.q_proj, attention.k_proj, attention.v_proj)
        groups[f"{name}.{index}.o"] = (attention.o_proj,)
        groups[f"{name}.{index}.gate_up"] = (mlp.gate_proj, mlp.up_proj)
        groups[f"{name}.{index}.down"] = (mlp.down_proj,)
    return groups


def fingerprint(model: nn.Module) -> str:
    """Return 16 hexadecimal digits that identify a network's weights, equal in float32 and bfloat16."""
    digest = hashlib.sha256()
    for name, group in products(model).items():
        sampled = first_numbers(group[0]).to(torch.bfloat16)
        digest.update(f"{name} {[tuple(linear.weight.shape) for linear in group]}".encode())
        digest.update(sampled.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Calibration:
    """largest: by product, float32 [K]. errors: relative errors of the products with int8 rows. alpha,
    most_error: see ALPHA and MOST_ERROR. model: the network's fingerprint. observations: how many were
    used."""

    model: str
    observations: int
    largest: Mapping[str, Tensor]
    errors: Mapping[str, float] = field(default_factory=dict)
    alpha: float = ALPHA
    most_error: float = MOST_ERROR

    def exact(self) -> list[str]:
        """Return the products that stay exact while others use int8 rows."""
        return [name for name, error in self.errors.items() if not error <= self.most_error]

    def factors(self, name: str, weight: Tensor, scaled: Tensor | None = None) -> Tensor:
        """Return float32 [K]: the factor of each column of a product's activations. weight [N, K]. scaled
        float [K]: factors that the stored columns already include. Raises ValueError if the product was not
        calibrated."""
        columns = self.largest.get(name)
        if columns is None or len(columns) != weight.shape[1]:
            raise ValueError(f"the calibration belongs to another network: it has no {name}; {AGAIN}.")
        largest = columns.to(weight.device)
        return smoothing(largest if scaled is None else largest / scaled.abs(), weight, self.alpha)

    def write(self, path: Path) -> None:
        """Write to a file. Raises OSError if that fails."""
        tensors = {name + LARGEST: largest.contiguous() for name, largest in self.largest.items()}
        tensors |= {name + ERROR: torch.tensor([error]) for name, error in self.errors.items()}
        metadata = {
            "format": FORMAT,
            "model": self.model,
            "observations": str(self.observations),
            "alpha": str(self.alpha),
            "most_error": str(self.most_error),
        }
        try:
            save_file(tensors, path, metadata)
        except SafetensorError as error:  # it is no OSError
            raise OSError(f"the calibration cannot be written: {error}.") from error


def read(path: Path, model: nn.Module) -> Calibration:
    """Read the calibration of a network. Raises ValueError, with one sentence, if the file is missing,
    damaged, or of another network."""
    metadata, tensors = _contents(path)
    if metadata.get("model") != fingerprint(model):
        raise ValueError(f"the calibration {path} belongs to another network than this checkpoint; {AGAIN}.")
    for name, group in products(model).items():
        columns, width = tensors.get(name + LARGEST), group[0].in_features
        error = tensors.get(name + ERROR)
        if columns is None or error is None or error.shape != (1,):
            raise ValueError(f"the calibration {path} lacks {name}; {AGAIN}.")
        if columns.shape != (width,):
            raise ValueError(
                f"the calibration {path} has {list(columns.shape)} magnitudes for {name}, which needs "
                f"{width}; {AGAIN}."
            )
    return _made(path, metadata, tensors, products(model))


def of_a_network_to_come(path: Path) -> Calibration:
    """Read a file before the network's weights are loaded, to smooth them while loading; call `read`
    afterwards. Raises ValueError if the file is missing or damaged."""
    metadata, tensors = _contents(path)
    return _made(path, metadata, tensors, [name.removesuffix(LARGEST) for name in tensors if LARGEST in name])


def _contents(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"there is no calibration {path}; {AGAIN}.") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the calibration {path} is damaged ({error}); {AGAIN}.") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a calibration, its format is {metadata.get('format')!r}; {AGAIN}.")
    return metadata, tensors


def _made(
    path: Path, said: Mapping[str, str], tensors: Mapping[str, Tensor], names: Iterable[str]
) -> Calibration:
    product_names = list(names)
    try:
        largest = {name: tensors[name + LARGEST].float() for name in product_names}
        errors = {name: float(tensors[name + ERROR]) for name in product_names}
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"the calibration {path} is damaged ({error}); {AGAIN}.") from error
    for name in product_names:
        numbers = torch.cat([largest[name].flatten(), torch.tensor([errors[name]])])
        if not bool((torch.isfinite(numbers) & (numbers >= 0)).all()):
            raise ValueError(
                f"the calibration {path} has magnitudes or errors of {name} that are not finite numbers of 0 "
                f"or more; {AGAIN}."
            )
    alpha, most_error = (_number(path, said, name) for name in ("alpha", "most_error"))
    observations = int(_number(path, said, "observations"))
    model = said.get("model", "")
    return Calibration(model, observations, largest, errors, alpha, most_error)


def _number(path: Path, said: Mapping[str, str], name: str) -> float:
    try:
        value = float(said.get(name, ""))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf") or (name == "observations" and value % 1):
        raise ValueError(
            f"the calibration {path} says {name} {said.get(name, '')!r}; make it with `vla calibrate`."
        )
    return value


def int8_weight(
    name: str, weight: Tensor, calibration: Calibration | None, scaled: Tensor | None = None
) -> Weight:
    """Return a product's matrix [N, K] quantised for int8 rows, and smoothed as calibrated; or the matrix
    itself if it stays exact. scaled: see Calibration.factors."""
    if calibration is None:
        return quantized(weight, W8A8)
    if name in calibration.exact():
        return weight
    return quantized(weight, W8A8, calibration.factors(name, weight, scaled))
