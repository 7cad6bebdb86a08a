"""Precision of the captured stages: which of them may compute in fewer bits.

The default is exact, because every other choice changes the actions.
fp8: for GPUs that multiply it (Hopper, Ada, Thor). Weights and activations of encode and prefill, weights of
    denoise; on GPUs with fast memory prefill alone.
nvfp4: for GPUs that multiply it (sm_100 on: Blackwell, Thor). Weights and activations of prefill in 4 bits,
    where fp8 has 8. Its kernels compile for them; it was tried on none.
int8, int4: for devices with slow memory (Orin). Weights of stages with few rows: denoise and text. Encode and
    prefill are compute-bound there and stay exact.
w8a8: for devices with faster int8 arithmetic. int8 by int8 in all products of layers of encode, prefill,
    denoise and text (engine.stages.int8). Staggered steps, the last layer of the token that text begins with
    and, with fast memory, denoising stay exact.
w8a8-int4: w8a8 in encode and prefill, int4 weights where int4 has them; the fastest choice in the plan of an
    Orin.

With fp8, nvfp4, int8 and int4 these stay exact: staggered steps, attention, norms, embeddings, both ends of
the flow, and attention's output products in encode and prefill, whose rows many blocks compute, none of which
knows a row's largest value.
`python bench/precision.py` measures the error and the speed of each choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.quantized import (
    FP8,
    INT4,
    INT8,
    NVFP4,
    W8A8,
    Quantized,
    Weight,
    quantized,
    total_bytes,
)
from vla_accel_ros.models.layers.vision import Layer
from vla_accel_ros.models.pi.folded import FoldedLayer, Prefix
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.smolvla.folding import Foldable
from vla_accel_ros.models.smolvla.model import SmolVLA

EXACT = "exact"
W8A8_INT4 = "w8a8-int4"
PRECISIONS = (EXACT, FP8, NVFP4, INT8, INT4, W8A8, W8A8_INT4)
ROWS = (W8A8, W8A8_INT4)
"""Precisions with rows in 8 bits and a calibration; only W8A8 uses them in denoising and text, too."""

MULTIPLIES = {FP8: (8, 9), NVFP4: (10, 0)}
"""First compute capability that multiplies each."""

IN_PREFIX = (FP8, NVFP4)
"""Precisions in which prefill computes the prefix stack in fewer bits (Small.prefix)."""

UNITS = {FP8: 16, NVFP4: 32}
"""Columns of matrices in these products are multiples of this, rows of 16."""

FAST_MEMORY = ((9, 0), (10, 0), (10, 3))
"""GPUs with stacked memory, where fp8 is for prefill alone. Measured on an H200: denoise takes 15.0 ms with
fp8 weights and 7.4 ms with exact ones, and encode 1.75 ms in fp8 and 1.66 ms in bfloat16."""


@dataclass(frozen=True)
class SmallLayer:
    """Quantised matrices, as in models.pi.folded.FoldedLayer; o may be exact."""

    qkv: Quantized
    o: Weight
    gate_up: Quantized
    down: Quantized

    @classmethod
    def of(
        cls, layer: FoldedLayer, kind: str, o: bool = True, made: Mapping[str, Quantized] | None = None
    ) -> SmallLayer:
        """A quantised copy; o: whether o is quantised, too. made: quantised matrices to use instead of the
        exact ones (models.layers.few_bits)."""
        if made:
            return cls(made["qkv"], made.get("o", layer.o), made["gate_up"], made["down"])
        qkv, gate_up, down = (quantized(weight, kind) for weight in (layer.qkv, layer.gate_up, layer.down))
        return cls(qkv, quantized(layer.o, kind) if o else layer.o, gate_up, down)

    @property
    def nbytes(self) -> int:
        """Bytes of the quantised matrices."""
        small = (self.qkv, self.o, self.gate_up, self.down)
        return total_bytes([weight for weight in small if isinstance(weight, Quantized)])


@dataclass(frozen=True)
class SmallVision:
    """The matrices of a layer of the image encoder whose inputs can be fp8 rows."""

    qkv: Quantized
    fc1: Quantized
    fc2: Quantized

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return total_bytes((self.qkv, self.fc1, self.fc2))


class Small:
    """The quantised weights of one model's stages, each made on first use. None for exact stages, and for
    rows in 8 bits with a calibration, whose weights are in engine.stages.int8.

    precision: one of PRECISIONS that passed `check`. prefill_only: whether fp8 is for prefill alone; None =
    the faster choice on the model's device. Raises ValueError for sizes without fp8 products.
    """

    def __init__(
        self, precision: str, model: Foldable, prefix: Prefix, prefill_only: bool | None = None
    ) -> None:
        self.precision, self._model, self._prefix = precision, model, prefix
        device = model.embed_table.device
        if precision == NVFP4 or (precision == FP8 and device.type == "cuda"):
            _check_sizes(model, precision)
        self._prefill_only = in_prefill_alone(precision, device, prefill_only)
        self._expert: tuple[SmallLayer, ...] | None = None

    @property
    def in_vision(self) -> bool:
        """Whether encode computes in fp8."""
        return self.precision == FP8 and not self._prefill_only

    @cached_property
    def vision(self) -> tuple[SmallVision, ...] | None:
        """Weights for encode."""
        if not self.in_vision:
            return None
        tower = self._model.vision
        return tuple(_vision(layer) for layer in cast("list[Layer]", list(tower.encoder.layers)))

    @cached_property
    def prefix(self) -> tuple[SmallLayer, ...] | None:
        """Weights for prefill."""
        if self.precision not in IN_PREFIX:
            return None
        smalls = map(given, self._model.language_model.layers)
        return tuple(
            SmallLayer.of(layer, self.precision, o=False, made=small)
            for layer, small in zip(self._prefix.layers, smalls, strict=True)
        )

    def expert(self, layers: Sequence[FoldedLayer]) -> tuple[SmallLayer, ...] | None:
        """Weights for denoise, from the folded layers, which are the same for any number of steps."""
        if self.precision in (EXACT, W8A8) or self._prefill_only:
            return None
        if self._expert is None:
            kind = INT4 if self.precision == W8A8_INT4 else self.precision
            smalls = map(given, cast(Pi | SmolVLA, self._model).expert.layers)
            self._expert = tuple(
                SmallLayer.of(layer, kind, made=small) for layer, small in zip(layers, smalls, strict=True)
            )
        return self._expert

    @property
    def nbytes(self) -> int:
        """Bytes of the copies made so far."""
        stacks = [vars(self).get("vision"), vars(self).get("prefix"), self._expert]
        return sum(layer.nbytes for layers in stacks if layers is not None for layer in layers)


def check(precision: str, fast: bool, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError, in one sentence, for a precision that these stages cannot have."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}.")
    if precision == EXACT:
        return
    if not fast:
        raise ValueError(f"precision is {precision}, which only the fast stages have; set fast, too.")
    if precision not in IN_PREFIX or device.type != "cuda":
        return
    name, sm = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    first = MULTIPLIES[precision]
    if sm < first:
        raise ValueError(
            f"precision is {precision}, but {name} (sm_{sm[0]}{sm[1]}) does not multiply it, as GPUs "
            f"from sm_{first[0]}{first[1]} on do; use {W8A8}, {INT8} or {INT4}."
        )
    if dtype != torch.bfloat16:
        raise ValueError(
            f"precision is {precision}, whose products are bfloat16, but dtype is {dtype}; use bfloat16."
        )
    failure = _failure(device, precision)
    if failure is not None:
        raise ValueError(
            f"precision is {precision}, but this torch ({torch.__version__}) has no such products on {name}: "
            f"{failure}; use {EXACT}, {INT8} or {INT4}."
        )


def in_prefill_alone(precision: str, device: torch.device, choice: bool | None = None) -> bool:
    """Whether only prefill computes in fewer bits. choice: of fp8; None = the faster one on the device."""
    return precision == NVFP4 or (precision == FP8 and (feeds_fast(device) if choice is None else choice))


def feeds_fast(device: torch.device) -> bool:
    """Whether the GPU's memory feeds few rows faster than its processors widen quantised weights."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_MEMORY


def _check_sizes(model: Foldable, precision: str) -> None:
    vision, prefix, unit = model.config.vision, model.config.prefix, UNITS[precision]
    sizes = [prefix.width, prefix.mlp] + ([vision.width, vision.mlp] if precision == FP8 else [])
    rows = prefix.kv_heads * prefix.head_dim
    odd = [size for size in sizes if size % unit]
    odd += [rows] if rows % 16 and model.embed_table.is_cuda else []
    if odd:
        raise ValueError(
            f"precision is {precision}, whose products are of multiples of {unit}, but the model has sizes "
            f"{', '.join(map(str, odd))}; use {INT8} or {INT4}."
        )


def _failure(device: torch.device, precision: str) -> str | None:
    """Why products in the precision fail here, None if they work. It tries one: it depends on torch, CUDA's
    libraries and the GPU."""
    from vla_accel_ros.kernels.triton.quantized import multiply_rows  # triton is where CUDA is

    rows = Rows.within(torch.zeros(128, 128, device=device, dtype=torch.bfloat16), precision)
    out = torch.empty(128, 128, device=device, dtype=torch.bfloat16)
    try:
        multiply_rows(rows, quantized(out.float(), precision), out)
    except (RuntimeError, AttributeError) as error:
        return str(error).splitlines()[0]
    return None


def _vision(layer: Layer) -> SmallVision:
    attention, mlp = layer.self_attn, layer.mlp
    if weights := given(layer):
        return SmallVision(weights["qkv"], weights["fc1"], weights["fc2"])
    qkv: Tensor = fuse((attention.q_proj, attention.k_proj, attention.v_proj))[0]
    return SmallVision(quantized(qkv, FP8), quantized(mlp.fc1.weight, FP8), quantized(mlp.fc2.weight, FP8))
