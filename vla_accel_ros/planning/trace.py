"""What a network computes: its plain modules run on meta tensors, and every operation is recorded.

FLOP are those of torch's own counter (torch.utils.flop_counter). Bytes are those of the tensors that an
operation reads and writes, as if no cache kept any. Nothing is computed and no memory is held, so a network
of any size is traced on any machine. planning.stages turns a record into the launches of an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

UNLAUNCHED = ("_unsafe_view", "detach", "empty", "promote_types", "rand", "scalar_tensor", "split", "unbind")
"""Operations that launch nothing, besides views."""
LINEAR = ("mm.", "addmm.")
"""Products by a matrix of weights; others are batched."""
TWICE = "masked_fill."
"""It copies first, and so is two launches."""


@dataclass(frozen=True)
class Call:
    """An operation. weight: the name of the parameter that a product multiplies by; "" for other operations.

    A product has rows x inner times inner x columns. An attention, one launch, has `rows` query rows of all
    heads, `inner` keys for each and `columns` numbers in a head. source: identifies the tensor that a product
    multiplies. weight_bytes: of the parameter, or of keys and values; moved_bytes: of all other tensors.
    """

    name: str
    weight: str = ""
    rows: int = 0
    columns: int = 0
    inner: int = 0
    flops: int = 0
    source: int = 0
    weight_bytes: int = 0
    moved_bytes: int = 0
    dtype: torch.dtype = torch.float32
    heads: int = 0
    launches: int = 1


class _Operations(TorchDispatchMode):
    def __init__(self, parameters: Mapping[int, str], calls: list[Call]) -> None:
        super().__init__()
        self._parameters, self._calls = parameters, calls
        self._results: list[Any] = []  # kept, so that no later storage has the identity of an earlier one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler first, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._results.append(result)
        inputs, outputs = list(_tensors((args, kwargs))), list(_tensors(result))
        storages = {_storage(tensor) for tensor in inputs}
        is_view = "_." not in func.__name__ and all(_storage(tensor) in storages for tensor in outputs)
        if not is_view and not func.__name__.startswith(UNLAUNCHED):
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
            self._calls.append(self._call(func.__name__, flops, inputs, outputs))
        return result

    def _call(self, name: str, flops: int, inputs: list[Tensor], outputs: list[Tensor]) -> Call:
        weights = [tensor for tensor in inputs if _storage(tensor) in self._parameters]
        if flops and not weights and name.startswith(LINEAR):
            weights = inputs[-1:]  # several parameters as one, see models.layers.fused
        used = {_storage(tensor) for tensor in weights}
        tensors = [tensor for tensor in inputs if _storage(tensor) not in used]
        moved = sum(tensor.nbytes for tensor in (*tensors, *outputs))
        dtype = (tensors or outputs)[0].dtype
        if not flops:
            return Call(name, moved_bytes=moved, dtype=dtype, launches=2 if name.startswith(TWICE) else 1)
        matrix = next((tensor for tensor in weights if tensor.ndim > 1), None)
        columns = outputs[0].shape[1 if outputs[0].ndim > 3 else -1]  # of a convolution: its channels
        rows = outputs[0].numel() // columns
        sizes = rows, columns, flops // (2 * rows * columns), flops
        if matrix is None:
            return Call(name, "", *sizes, moved_bytes=moved, dtype=dtype)
        weight = self._parameters.get(_storage(matrix), "fused.weight")
        source = _storage(tensors[0])
        return Call(name, weight, *sizes, source, matrix.nbytes, moved, matrix.dtype)


class _Attentions(TorchFunctionMode):
    """Records torch's attention as one launch, which it is on a GPU."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        rows, keys, head = math.prod(query.shape[:-1]), key.shape[-2], query.shape[-1]
        sizes, kv = (rows, head, keys, 4 * rows * keys * head), key.nbytes + value.nbytes
        moved, heads = 2 * query.nbytes, query.shape[1]
        self._calls.append(
            Call("attention", "", *sizes, weight_bytes=kv, moved_bytes=moved, dtype=query.dtype, heads=heads)
        )
        return torch.empty_like(query)


def trace(model: nn.Module, run: Callable[[], object]) -> tuple[Call, ...]:
    """Return the operations of a call of the model's modules. model: on the meta device."""
    parameters = {_storage(parameter): name for name, parameter in model.named_parameters()}
    calls: list[Call] = []
    with torch.no_grad(), torch.device("meta"), _Attentions(calls), _Operations(parameters, calls):
        run()
    return tuple(calls)


def _tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
