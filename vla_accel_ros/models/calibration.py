"""What was seen of the inputs of a network's products on recorded observations: a file beside a checkpoint.

Products of int8 activations lose most where few columns are much larger than the others. For each product the
file has the largest magnitude of each column, from which factors follow that share the load between a column
and its weights (models.layers.quantized.smoothing), and the relative error of the product with them, in
int8 and in fp8. Products whose error is above what the file says stay exact. `vla calibrate` writes it
(tools/calibrate).

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
from vla_accel_ros.models.layers.quantized import FP8, W8A8, Weight, quantized, smoothing
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi

FORMAT = "vla_accel_ros calibration 2"
ALPHA = 0.5
"""Share of the load that moves from activations to weights."""
MOST_ERROR = 0.05
"""Relative error of a product up to which it is computed in 8 bits."""
LARGEST, AGAIN = ".largest", "make it with `vla calibrate`"
ERRORS = {W8A8: "error", FP8: "error in fp8"}
"""Of a product in a kind of rows: what it is called in the file."""

Group = tuple[nn.Linear, ...]
"""Projections of one input, which are one matrix in the fast stages, in the order of its rows."""


def products(model: nn.Module) -> dict[str, Group]:
    """The products that can be of int8 rows, by name. Raises ValueError for a model that has none."""
    found: dict[str, Group] = {}
    if isinstance(model, Pi):
        tower = model.paligemma_with_expert.paligemma.model.vision_tower.vision_model
        for index, layer in enumerate(cast(Any, tower.encoder.layers)):
            name, attention = f"vision.{index}", layer.self_attn
            found[f"{name}.qkv"] = (attention.q_proj, attention.k_proj, attention.v_proj)
            found[f"{name}.o"] = (attention.out_proj,)
            found[f"{name}.fc1"], found[f"{name}.fc2"] = (layer.mlp.fc1,), (layer.mlp.fc2,)
        return found | _of_stack("prefix", model.language_model) | _of_stack("expert", model.expert)
    if isinstance(model, OpenVLA):
        return _of_stack("prefix", model.stack)
    raise ValueError(f"a {type(model).__name__} has no products of int8 rows: pi0, pi0.5 and OpenVLA have.")


def _of_stack(name: str, stack: nn.Module) -> dict[str, Group]:
    found: dict[str, Group] = {}
    for index, layer in enumerate(cast(Any, stack).layers):
        attention, mlp = layer.self_attn, layer.mlp
        found[f"{name}.{index}.qkv"] = (attention.q_proj, attention.k_proj, attention.v_proj)
        found[f"{name}.{index}.o"] = (attention.o_proj,)
        found[f"{name}.{index}.gate_up"] = (mlp.gate_proj, mlp.up_proj)
        found[f"{name}.{index}.down"] = (mlp.down_proj,)
    return found


def fingerprint(model: nn.Module) -> str:
    """Of a network's weights, the same in float32 and bfloat16: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, group in products(model).items():
        sampled = first_numbers(group[0]).to(torch.bfloat16)
        digest.update(f"{name} {[tuple(linear.weight.shape) for linear in group]}".encode())
        digest.update(sampled.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Calibration:
    """largest: by product, float32 [K]. errors: relative, of the products of int8 rows; fp8_errors: of fp8
    rows. alpha, most_error: see ALPHA and MOST_ERROR. model: its fingerprint. observations: how many were
    seen."""

    model: str
    observations: int
    largest: Mapping[str, Tensor]
    errors: Mapping[str, float] = field(default_factory=dict)
    alpha: float = ALPHA
    most_error: float = MOST_ERROR
    fp8_errors: Mapping[str, float] = field(default_factory=dict)

    def errors_in(self, kind: str) -> Mapping[str, float]:
        """By product, of rows of a kind."""
        return self.fp8_errors if kind == FP8 else self.errors

    def exact(self, kind: str = W8A8) -> list[str]:
        """Products that stay exact where others are of rows of a kind."""
        return [name for name, error in self.errors_in(kind).items() if not error <= self.most_error]

    def factors(self, name: str, weight: Tensor, scaled: Tensor | None = None) -> Tensor:
        """float32 [K]: what columns of a product's activations are multiplied by. weight [N, K]; scaled
        float [K]: factors of the activations that are in its columns already. Raises ValueError for a product
        that was not seen."""
        seen = self.largest.get(name)
        if seen is None or len(seen) != weight.shape[1]:
            raise ValueError(f"the calibration is of another network: it has no {name}; {AGAIN}.")
        largest = seen.to(weight.device)
        return smoothing(largest if scaled is None else largest / scaled.abs(), weight, self.alpha)

    def write(self, path: Path) -> None:
        """To a file. Raises OSError where it cannot be."""
        tensors = {name + LARGEST: largest.contiguous() for name, largest in self.largest.items()}
        for kind, called in ERRORS.items():
            found = self.errors_in(kind)
            tensors |= {f"{name}.{called}": torch.tensor([error]) for name, error in found.items()}
        said = {
            "format": FORMAT,
            "model": self.model,
            "observations": str(self.observations),
            "alpha": str(self.alpha),
            "most_error": str(self.most_error),
        }
        save_file(tensors, path, said)


def read(path: Path, model: nn.Module) -> Calibration:
    """The calibration of a network. Raises ValueError, in one sentence, for a file that is none, is damaged,
    or is of another network."""
    said, tensors = _contents(path)
    if said.get("model") != fingerprint(model):
        raise ValueError(f"the calibration {path} is of another network than this checkpoint's; {AGAIN}.")
    for name, group in products(model).items():
        found, width = tensors.get(name + LARGEST), group[0].in_features
        off = [tensors.get(f"{name}.{called}") for called in ERRORS.values()]
        if found is None or any(one is None or one.shape != (1,) for one in off):
            raise ValueError(f"the calibration {path} lacks {name}; {AGAIN}.")
        if found.shape != (width,) or not bool((found >= 0).all()):
            raise ValueError(
                f"the calibration {path} has {list(found.shape)} magnitudes of {name}, whose columns are "
                f"{width}, or some that are no magnitudes; {AGAIN}."
            )
    return _made(path, said, tensors, products(model))


def of_a_network_to_come(path: Path) -> Calibration:
    """What a file says before the network's weights are there, which are smoothed while they are loaded;
    `read` it once they are. Raises ValueError for a file that is none or is damaged."""
    said, tensors = _contents(path)
    return _made(path, said, tensors, [name.removesuffix(LARGEST) for name in tensors if LARGEST in name])


def _contents(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            said = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"there is no calibration {path}; {AGAIN}.") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the calibration {path} is damaged ({error}); {AGAIN}.") from error
    if said.get("format") != FORMAT:
        raise ValueError(f"{path} is no calibration, its format is {said.get('format')!r}; {AGAIN}.")
    return said, tensors


def _made(
    path: Path, said: Mapping[str, str], tensors: Mapping[str, Tensor], names: Iterable[str]
) -> Calibration:
    kept = list(names)
    try:
        largest = {name: tensors[name + LARGEST].float() for name in kept}
        errors = {
            kind: {name: float(tensors[f"{name}.{called}"]) for name in kept}
            for kind, called in ERRORS.items()
        }
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"the calibration {path} is damaged ({error}); {AGAIN}.") from error
    alpha, most = (_number(path, said, name) for name in ("alpha", "most_error"))
    observations = int(_number(path, said, "observations"))
    model = said.get("model", "")
    return Calibration(model, observations, largest, errors[W8A8], alpha, most, errors[FP8])


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
    name: str, weight: Tensor, calibration: Calibration | None, scaled: Tensor | None = None, kind: str = W8A8
) -> Weight:
    """A product's matrix [N, K] for rows of a kind, W8A8 or FP8, smoothed as it was calibrated, or itself
    where it stays exact. scaled: see Calibration.factors."""
    if calibration is None:
        return quantized(weight, kind)
    if name in calibration.exact(kind):
        return weight
    return quantized(weight, kind, calibration.factors(name, weight, scaled))
