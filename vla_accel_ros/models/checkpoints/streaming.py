"""Stream weights from files into a model, one tensor at a time.

The model is built on `meta` and each parameter is replaced when its value arrives, so there is never a second
copy of the model. Files are read through a mapping that is renewed after each gigabyte, since pages that were
read count as host memory until then. A tensor moves to the device in its stored dtype and is converted there.
Parameters that the engine reads as one (fused.py) are written into one tensor directly. Extra host memory is
at most one window, or one tensor if that is larger: never more than a shard. Extra device memory is one block
of a tensor whose dtype changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vla_accel_ros.models.checkpoints.shards import Stored, open_weights, value_of
from vla_accel_ros.models.network import Network

_N = TypeVar("_N", bound=Network)
_Sizes = TypeVar("_Sizes")

Progress = Callable[[int, int], None]
"""Called after every tensor with (bytes read so far, bytes in all)."""
LayerLoaded = Callable[[str, nn.Module], object]
"""Called with (path of a layer in its model, the layer) once all parameters of the layer are loaded."""
WINDOW = 1 << 30
"""Most bytes read through one mapping of a file; a larger tensor has a mapping of its own."""
BLOCK = 1 << 24
"""How many numbers of a tensor are compared, or converted on the device, at once."""


class _Uninitialised(TorchFunctionMode):
    """Skips torch's parameter initialisation; parameters keep what is in their memory."""

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
    """Build models with shapes and dtypes but without numbers. Initialisation is skipped too: drawing random
    numbers on `meta` would make torch load its compiler."""
    with torch.device("meta"), _Uninitialised():
        yield


def empty(network: Callable[[_Sizes], _N], sizes: _Sizes, dtype: torch.dtype = torch.float32) -> _N:
    """Return a network of these sizes on `meta`, its parameters in the dtypes of this precision."""
    with on_meta():
        return network(sizes).set_precision(dtype)


def read(table: Mapping[str, Stored], names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the named tensors as stored, file by file. Each is a view that is valid until the next one is
    asked for."""
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
    layer_loaded: LayerLoaded | None = None,
) -> None:
    """Set the parameters of a model, each in the parameter's dtype, on `device`.

    values: (parameter name, value). total: bytes of all values. where: the file or folder that errors name.
    fused: parameters that become rows of one tensor, see fused_parts. layer_loaded: see LayerLoaded.
    Raises ValueError naming every parameter that holds a number that is not finite.
    """
    broken: list[str] = []
    places, done = _Places(model, fused or {}, device), 0
    layers = _Layers(model, layer_loaded)
    for name, value in values:
        parent, _, leaf = name.rpartition(".")
        module = model.get_submodule(parent)
        dtype, parameter = module.get_parameter(leaf).dtype, places.of(name)
        if parameter is None:
            parameter = torch.empty(value.shape, dtype=dtype, device=device)
        placed = _put(parameter, value)
        if not is_finite(placed):
            broken.append(name)
        module.register_parameter(leaf, nn.Parameter(placed.contiguous(), requires_grad=False))
        done += value.nbytes
        del value, placed, parameter
        layers.came(name)
        if progress is not None:
            progress(done, total)
    if broken:
        raise ValueError(f"{where}: not every number is finite in {sorted(broken)}; copy or train it again.")


def _put(place: Tensor, value: Tensor) -> Tensor:
    """Copy a host tensor into `place` and return `place`. Where device and dtype differ, blocks of rows are
    copied to the device in the stored dtype and converted there."""
    if not place.ndim or place.device == value.device or place.dtype == value.dtype:
        return place.copy_(value)
    rows = max(1, BLOCK * len(place) // max(1, place.numel()))
    for some, source in zip(place.split(rows), value.split(rows), strict=True):
        some.copy_(source.to(place.device))
    return place


class _Places:
    """The rows for parameters that are fused into one tensor; the tensor is made when its first parameter
    arrives."""

    def __init__(self, model: nn.Module, fused: Mapping[str, Sequence[str]], device: torch.device) -> None:
        self._model, self._device = model, device
        self._tensor_of = {part: parts for parts in fused.values() for part in parts}
        self._made: dict[str, Tensor] = {}

    def of(self, name: str) -> Tensor | None:
        """Return the parameter's rows of its fused tensor, in the parameter's dtype; None if it is
        not fused."""
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


class _Layers:
    """Calls `told` with each layer of a stack or tower (an nn.ModuleList) once all its parameters are
    loaded."""

    def __init__(self, model: nn.Module, told: LayerLoaded | None) -> None:
        self._model, self._told = model, told
        self._missing: dict[str, int] = {}
        self._layer_of: dict[str, str] = {}
        if told is None:
            return
        lists = [
            (path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList)
        ]
        for path, layers in lists:
            for index, layer in enumerate(layers):
                names = [name for name, _ in layer.named_parameters()]
                where = f"{path}.{index}"
                self._missing[where] = len(names)
                self._layer_of |= {f"{where}.{name}": where for name in names}

    def came(self, name: str) -> None:
        """Record that a parameter is loaded."""
        where = self._layer_of.get(name)
        if where is None or self._told is None:
            return
        self._missing[where] -= 1
        if not self._missing[where]:
            with torch.no_grad():
                self._told(where, self._model.get_submodule(where))


def is_finite(values: Tensor) -> bool:
    """Return whether all numbers are finite, by the smallest and the largest one, so that nothing large is
    allocated."""
    return not values.numel() or bool(torch.stack(torch.aminmax(values)).isfinite().all())


def same(table: Mapping[str, Stored], first: str, second: str) -> bool:
    """Return whether two tensors of one shape hold equal numbers, compared in blocks of rows."""
    first_stored, second_stored = table[first], table[second]
    rows = first_stored.shape[0] if first_stored.shape else 1
    block = max(1, BLOCK * rows // max(1, torch.Size(first_stored.shape).numel()))
    for start in range(0, rows, block):
        with open_weights(first_stored.file) as a, open_weights(second_stored.file) as b:
            some = slice(start, start + block)
            first_values, second_values = (
                value_of(a, first, first_stored, some),
                value_of(b, second, second_stored, some),
            )
            if not torch.equal(first_values, second_values.to(first_values.dtype)):
                return False
    return True


def reading_order(table: Mapping[str, Stored], names: Iterable[str]) -> list[str]:
    """Sort names into the order in which `read` yields them: by file, then by name."""
    return sorted(names, key=lambda name: (table[name].file, name))


def _windows(table: Mapping[str, Stored], names: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of tensor names of one file, at most WINDOW bytes together, in reading order."""
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
