"""The kernels that a stage calls, with their tuning and scratch memory, or their references.

Stages are written once against `Ops`. On a CPU that is the references; on a GPU it is the Triton kernels,
imported only then and launched as the device's table says. An Ops belongs to one chain of launches: two
stages that may run at the same time need one each, because kernels keep partial sums in its scratch memory.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vla_accel_ros.kernels import tuning
from vla_accel_ros.kernels.early import writing
from vla_accel_ros.kernels.reference import attention, flow, heads, image, int8, linear, norm, quantized
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.kernels.shapes import INT8_GATED, INT8_PRODUCT, PARTED, Config, Shape
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.layers.quantized import Weight


class Ops:
    """The plain references."""

    attend = staticmethod(attention.attend)
    attend_rotary = staticmethod(attention.attend_rotary)
    attend_views = staticmethod(attention.attend_views)
    attend_full = staticmethod(attention.attend_full)
    rotate_heads = staticmethod(heads.rotate_heads)
    rotary_qkv = staticmethod(linear.rotary_qkv)
    place_qkv = staticmethod(linear.place_qkv)
    gated_up = staticmethod(linear.gated_up)
    glu = staticmethod(linear.glu)
    project = staticmethod(linear.project)
    embed_actions = staticmethod(flow.embed_actions)
    read_out = staticmethod(flow.read_out)
    rms_norm = staticmethod(norm.rms_norm)
    add_norm = staticmethod(norm.add_norm)
    add_layer_norm = staticmethod(norm.add_layer_norm)
    bias_product = staticmethod(norm.bias_product)
    gelu_product = staticmethod(norm.gelu_product)
    add_product = staticmethod(norm.add_product)
    patches = staticmethod(image.patches)
    rms_norm_rows = staticmethod(quantized.rms_norm_rows)
    layer_norm_rows = staticmethod(quantized.layer_norm_rows)
    glu_rows = staticmethod(quantized.glu_rows)
    gelu_rows = staticmethod(quantized.gelu_rows)
    multiply_rows = staticmethod(quantized.multiply_rows)
    multiply_unscaled = staticmethod(quantized.multiply_unscaled)
    quantize = staticmethod(int8.quantize)
    rms_norm_int8 = staticmethod(int8.rms_norm)
    layer_norm_int8 = staticmethod(int8.layer_norm)
    add_norm_int8 = staticmethod(int8.add_norm)
    multiply_int8 = staticmethod(int8.multiply)
    gated_int8 = staticmethod(int8.gated)

    def parts(self, rows: int, weight: Tensor) -> int:
        """Return the split for which kernels.reference.linear.product_in_parts is fastest; 1 = one product
        that also adds."""
        return 1


warn_once = cache(logging.getLogger(__name__).warning)

WRITTEN = {
    "attend_rotary": "q k_tail out", "rotary_qkv": "q k v", "place_qkv": "q k v", "add_product": "x y",
    "project": "x norm.squares norm.scaled", "embed_actions": "out norm.squares norm.scaled",
    "read_out": "x update magnitudes.values history.before", "add_norm": "x out", "add_norm_int8": "x out",
    "add_layer_norm": "x out", "rms_norm_rows": "x out", "layer_norm_rows": "x out",
}  # fmt: skip
"""Arguments that a kernel writes; all others write `out`."""


class Hopper(NamedTuple):
    """A kernel of kernels/cuda: `takes` checks its arguments, `launch` runs it."""

    takes: Callable[..., bool]
    launch: Callable[..., Any]


class TritonOps(Ops):
    """The Triton kernels, and on sm_90 those of kernels/cuda for the shapes in the table.

    table: None = the device's table.
    """

    def __init__(self, device: torch.device, table: Table | None = None) -> None:
        from vla_accel_ros.kernels.triton.launch import Scratch

        self.table = tuning.load_table(device) if table is None else table
        self.scratch = Scratch.of(device)
        self._bind()

    def _bind(self) -> None:
        from vla_accel_ros.kernels.cuda import attention as cuda_attention
        from vla_accel_ros.kernels.cuda import (
            linear_layers,
            products,
            rotary_attention,
            tiles,
            view_attention,
        )
        from vla_accel_ros.kernels.cuda.compiling import ROWS, clusters_of
        from vla_accel_ros.kernels.triton import (
            attention,
            flow,
            full_attention,
            heads,
            image,
            linear,
            norm,
            project,
            quantized,
        )
        from vla_accel_ros.kernels.triton.rotary_attention import attend_rotary

        pdl, scratch = self.table.pdl, {"scratch": self.scratch}
        self.hopper = hopper = {
            "attend": Hopper(cuda_attention.takes, cuda_attention.attend),
            "attend_rotary": Hopper(rotary_attention.takes, rotary_attention.attend_rotary),
        }
        for name in products.KINDS:
            hopper[name] = Hopper(partial(products.takes, name), getattr(products, name))
        for name in tiles.FINISHES:
            hopper[name] = Hopper(tiles.pays, getattr(tiles, name))

        def cuda_config(key: Shape, arguments: tuple[Any, ...]) -> Config | None:
            """Return the first entry that the kernel takes, or the next one if its clusters could run at
            once but do not."""
            gpu, entries = self.table.gpu, self.table.pick_hopper(key)
            usable = [config for config in entries if hopper[key.kernel].takes(*arguments, config=config)]
            # Without a table of its own a partition computes the same bits as the device.
            own = gpu.of_all not in (None, gpu.processors)
            stream = torch.cuda.current_stream().cuda_stream if own else 0
            for config in usable if len(usable) > 1 else ():
                launch = partial(hopper[key.kernel].launch, *arguments, config=config)
                kernel, blocks, number = clusters_of(launch)
                if blocks * number > gpu.processors or number <= kernel.at_once(blocks, stream):
                    return config
                warn_once("%s: %d clusters of %d blocks do not run at once.", key.key, number, blocks)
            return usable[0] if usable else None

        def tuned(
            kernel: Callable[..., None], shape: Callable[..., Shape], extra: dict[str, Any]
        ) -> Callable[..., None]:
            def launch(*arguments: Any, **named: Any) -> None:
                key = shape(*arguments)
                if (config := cuda_config(key, arguments)) is not None:
                    hopper[key.kernel].launch(*arguments, **named, config=config, pdl=pdl)
                else:
                    kernel(*arguments, **named, config=self.table.pick(key), pdl=pdl, **extra)

            return launch

        blas: dict[str, Callable[..., Any]] = {
            "bias_product": Ops.bias_product,
            "gelu_product": norm.gelu_product,
            "add_product": norm.add_product,
        }

        processors = self.table.gpu.of_all or self.table.gpu.processors

        def of_blas(name: str) -> Callable[..., Any]:
            def launch(*arguments: Any) -> Any:
                key = product_shape(name, *arguments)
                if replace(key, rows=ROWS).key not in self.table.hopper:  # few rows were not tuned
                    config = linear_layers.linear_config(name, *arguments, blocks=processors)
                    if config is not None:
                        return getattr(linear_layers, name)(*arguments, config=config, pdl=pdl)
                if (config := cuda_config(key, arguments)) is not None:
                    return hopper[name].launch(*arguments, config=config, pdl=pdl)
                return blas[name](*arguments)

            return launch

        def attend_views(qkv: Tensor, heads: int, views: int) -> Tensor:
            if view_attention.takes(qkv, heads, views):
                return view_attention.attend_views(qkv, heads, views, pdl=pdl)
            return Ops.attend_views(qkv, heads, views)

        bound: dict[str, Callable[..., Any]] = {
            "attend": tuned(attention.attend, attend_shape, scratch),
            "attend_rotary": tuned(attend_rotary, attend_rotary_shape, scratch),
            "rotary_qkv": tuned(linear.rotary_qkv, rotary_qkv_shape, {}),
            "gated_up": tuned(linear.gated_up, gated_up_shape, {}),
            "project": tuned(project.project, project_shape, scratch),
            "embed_actions": tuned(flow.embed_actions, embed_actions_shape, scratch),
            "read_out": tuned(flow.read_out, read_out_shape, {}),
            "place_qkv": norm.place_qkv,
            "glu": norm.glu,
            "rms_norm": norm.rms_norm,
            "add_norm": norm.add_norm,
            "attend_views": attend_views,
            "attend_full": partial(full_attention.attend_full, pdl=pdl, scratch=self.scratch),
            "rotate_heads": partial(heads.rotate_heads, pdl=pdl),
            "add_layer_norm": partial(norm.add_layer_norm, pdl=pdl),
            **{name: of_blas(name) for name in blas},
            "patches": image.patches,
            "rms_norm_rows": quantized.rms_norm_rows,
            "layer_norm_rows": quantized.layer_norm_rows,
            "glu_rows": quantized.glu_rows,
            "gelu_rows": quantized.gelu_rows,
            "multiply_rows": quantized.multiply_rows,
            "multiply_unscaled": quantized.multiply_unscaled,
            **of_rows_in_8_bits(self.table),
        }
        for name, function in bound.items():
            setattr(self, name, writing(WRITTEN.get(name, "out"), getattr(Ops, name), function))

    def parts(self, rows: int, weight: Tensor) -> int:
        return self.table.pick(parts_shape(rows, weight)).split


def of_rows_in_8_bits(table: Table) -> dict[str, Callable[..., None]]:
    """Return the kernels of int8 rows by their names in Ops, with products launched as the table
    says."""
    from vla_accel_ros.kernels.triton import int8

    def tuned(kernel: Callable[..., None], shape: Callable[..., Shape]) -> Callable[..., None]:
        def launch(a: Rows | Tensor, weight: Weight, *arguments: Any) -> None:
            kernel(a, weight, *arguments, config=table.pick(shape(a, weight)))

        return launch

    return {
        "quantize": int8.quantize,
        "rms_norm_int8": int8.rms_norm,
        "layer_norm_int8": int8.layer_norm,
        "add_norm_int8": int8.add_norm,
        "multiply_int8": tuned(int8.multiply, multiply_int8_shape),
        "gated_int8": tuned(int8.gated, gated_int8_shape),
    }


def ops_for(device: torch.device, multiprocessors: int | None = None) -> Ops:
    """Return the kernels on a GPU, the references elsewhere. multiprocessors: of an SM partition, which may
    have a table of its own, see kernels.tuning.load_table. Raises RuntimeError on a GPU without triton."""
    if device.type != "cuda":
        return Ops()
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError(
            "fast stages need triton, which comes with PyTorch's CUDA builds: install one, or set fast=False."
        )
    return TritonOps(device, tuning.load_table(device, multiprocessors))


def attend_shape(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    k_tail: Tensor | None = None,
    *_: Any,
) -> Shape:
    """Return the shape; its keys are the capacity, because only the device knows how many there are."""
    keys = k.shape[2] + (0 if k_tail is None else k_tail.shape[2])
    return _attention_shape("attend", q, k, keys)


def attend_rotary_shape(
    y: Tensor, cos: Tensor, sin: Tensor, q: Tensor, k_tail: Tensor, k: Tensor, *_: Any
) -> Shape:
    """Return the shape; its rows are those of one sequence."""
    return _attention_shape("attend_rotary", q, k, k.shape[2] + q.shape[1])


def _attention_shape(kernel: str, q: Tensor, k: Tensor, keys: int) -> Shape:
    (sequences, tokens, heads, head), key_heads = q.shape, k.shape[1]
    return Shape(kernel, tokens * heads // key_heads, keys, head, _name(q.dtype), sequences, key_heads)


def _few_rows_shape(kernel: str, halves: int, x: Tensor, weight: Tensor, *_: Any) -> Shape:
    columns, inner = weight.shape
    return Shape(kernel, _rows(x), columns // halves, inner, _name(weight.dtype))


rotary_qkv_shape = partial(_few_rows_shape, "rotary_qkv", 2)
gated_up_shape = partial(_few_rows_shape, "gated_up", 2)
project_shape = partial(_few_rows_shape, "project", 1)


def embed_actions_shape(x: Tensor, in_weight: Tensor, in_bias: Tensor, out: Tensor, *_: Any) -> Shape:
    return Shape("embed_actions", _rows(out), out.shape[2], out.shape[2], _name(out.dtype))


def read_out_shape(hidden: Tensor, weight: Tensor, *_: Any) -> Shape:
    return Shape("read_out", _rows(hidden), weight.shape[0], weight.shape[1], _name(hidden.dtype))


def product_shape(kernel: str, x: Tensor, weight: Tensor, *_: Any) -> Shape:
    """Return the shape of bias_product, gelu_product or add_product."""
    return Shape(kernel, x.shape[0], weight.shape[0], weight.shape[1], _name(weight.dtype))


bias_product_shape = partial(product_shape, "bias_product")
gelu_product_shape = partial(product_shape, "gelu_product")
add_product_shape = partial(product_shape, "add_product")


def multiply_int8_shape(a: Rows | Tensor, weight: Weight, *_: Any) -> Shape:
    """Return the shape of a product of int8 rows."""
    rows, (columns, inner) = len(a.values if isinstance(a, Rows) else a), weight.shape
    return Shape(INT8_PRODUCT, rows, columns, inner, _name(weight.dtype))


def gated_int8_shape(a: Rows | Tensor, weight: Weight, *_: Any) -> Shape:
    """Return the shape of the same product with two tiles of weights."""
    product = multiply_int8_shape(a, weight)
    return replace(product, kernel=INT8_GATED, columns=product.columns // 2)


def parts_shape(rows: int, weight: Tensor) -> Shape:
    """Return the shape of a product whose Config is only used for its split."""
    columns, inner = weight.shape
    return Shape(PARTED, rows, columns, inner, _name(weight.dtype))


def _rows(x: Tensor) -> int:
    return x.shape[0] * x.shape[1]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = ["Config", "Ops", "Shape", "Table", "TritonOps", "ops_for"]
