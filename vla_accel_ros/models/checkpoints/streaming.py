"""Weights on their way from a file to a model, one tensor at a time.

The model is built on `meta` and its parameters are replaced as their values come, so there is never a second
copy of it. Files are read through a mapping that is dropped after every gigabyte: pages that were read count
as the host's memory until then. A tensor goes to the device as it is stored and becomes the model's dtype
there; parameters that are read as one (fused.py) get their values in one place, so that nobody joins them
afterwards. What is beyond the model itself in the host's memory is at most one window, or one tensor if that
is larger: never more than a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vla_accel_ros.models.checkpoints.shards import Stored, open_weights, value_of

Progress = Callable[[int, int], None]
"""(bytes read so far, bytes in all), told after every tensor."""
WINDOW = 1 << 30
"""Bytes that are read through one mapping of a file, but for a tensor that is larger."""
BLOCK = 1 << 24
"""Numbers of two tensors that are compared at once."""


class _Uninitialised(TorchFunctionMode):
    """Parameters keep whatever is in their memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Models built within have shapes and dtypes but no numbers, and none are drawn for them: on `meta` that
    alone would make torch load its compiler."""
    with torch.device("meta"), _Uninitialised():
        yield


def read(table: Mapping[str, Stored], names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of these names as they are stored, file by file; each is a view that the next one ends."""
    for window in _windows(table, names):
        with open_weights(table[window[0]].file) as tensors:
            for name in window:
                yield name, value_of(tensors, name, table[name])


def fill(
    model: nn.Module,
    values: Iterable[tuple[str, Tensor]],
    device: torch.device,
    total: int,
    where: str,
    progress: Progress | None = None,
    fused: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Give parameters of a model their values: each in the dtype that the parameter has, on the device.

    values: (the parameter's name, its value). total: their bytes. where: the file or folder errors name.
    fused: names of parameters that become rows of one tensor, see fused_parts.
    Raises ValueError naming every parameter that holds a number that is not finite.
    """
    broken: list[str] = []
    places, done = _Places(model, fused or {}, device), 0
    for name, value in values:
        parent, _, leaf = name.rpartition(".")
        module = model.get_submodule(parent)
        dtype, place = module.get_parameter(leaf).dtype, places.of(name)
        if place is not None:
            placed = place.copy_(value if device.type == "cpu" else value.to(device))
        else:
            placed = value.to(dtype, copy=True) if device.type == "cpu" else value.to(device).to(dtype)
        if not is_finite(placed):
            broken.append(name)
        module.register_parameter(leaf, nn.Parameter(placed.contiguous(), requires_grad=False))
        done += value.nbytes
        del value, placed, place
        if progress is not None:
            progress(done, total)
    if broken:
        raise ValueError(f"{where}: not every number is finite in {sorted(broken)}; copy or train it again.")


class _Places:
    """Where parameters go that are rows of one tensor, which is made when the first of them comes."""

    def __init__(self, model: nn.Module, fused: Mapping[str, Sequence[str]], device: torch.device) -> None:
        self._model, self._device = model, device
        self._tensor_of = {part: parts for parts in fused.values() for part in parts}
        self._made: dict[str, Tensor] = {}

    def of(self, name: str) -> Tensor | None:
        """Rows of a tensor in the parameter's dtype; None for a parameter that is by itself."""
        if name not in self._tensor_of:
            return None
        if name not in self._made:
            parts = self._tensor_of[name]
            empty = [self._model.get_parameter(part) for part in parts]
            rows = [parameter.shape[0] for parameter in empty]
            shape = (sum(rows), *empty[0].shape[1:])
            tensor = torch.empty(shape, dtype=empty[0].dtype, device=self._device)
            self._made |= zip(parts, tensor.split(rows), strict=True)
        return self._made.pop(name)


def is_finite(values: Tensor) -> bool:
    """Whether every number is. Nothing is allocated for it: an extreme that is not finite tells of any."""
    return not values.numel() or bool(torch.stack(torch.aminmax(values)).isfinite().all())


def same(table: Mapping[str, Stored], first: str, second: str) -> bool:
    """Whether two tensors of one shape hold the same numbers, compared row by row block."""
    one, other = table[first], table[second]
    rows = one.shape[0] if one.shape else 1
    block = max(1, BLOCK * rows // max(1, torch.Size(one.shape).numel()))
    for start in range(0, rows, block):
        with open_weights(one.file) as a, open_weights(other.file) as b:
            some = slice(start, start + block)
            left, right = value_of(a, first, one, some), value_of(b, second, other, some)
            if not torch.equal(left, right.to(left.dtype)):
                return False
    return True


def reading_order(table: Mapping[str, Stored], names: Iterable[str]) -> list[str]:
    """The order in which `read` gives them."""
    return sorted(names, key=lambda name: (table[name].file, name))


def _windows(table: Mapping[str, Stored], names: Iterable[str]) -> Iterator[list[str]]:
    """Lists of tensors of one file that are WINDOW bytes together, in the order of files and names."""
    window: list[str] = []
    together = 0
    for name in reading_order(table, names):
        together += table[name].bytes
        if window and (table[name].file != table[window[0]].file or together > WINDOW):
            yield window
            window, together = [], table[name].bytes
        window.append(name)
    if window:
        yield window
