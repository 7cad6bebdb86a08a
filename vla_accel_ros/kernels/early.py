"""What launches read early, and a check that nothing may still write it.

With programmatic dependent launch a kernel begins while those before it end, and reads some tensors before
it waits for them. A launch declares them (`reads_early`). Triton kernels wait before they let the next one
begin (after_previous in triton/launch.py), so that only their own writes are under way then; those of
kernels/cuda let the next one begin first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cache, reduce, wraps
from typing import Any, ParamSpec, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

P = ParamSpec("P")
R = TypeVar("R")


class EarlyReads(TorchDispatchMode):
    """In the block, a launch that reads early what may still be written raises RuntimeError. stage: named in
    it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage
        self._writers: dict[range, str] = {}  # of addresses that launches under way may write

    def __enter__(self) -> EarlyReads:
        self._token = _CHECK.set(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _CHECK.reset(self._token)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema.arguments
        values = dict(zip((argument.name for argument in schema), args, strict=False)) | (kwargs or {})
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors([*values.values()])}
        fresh = [x for x in _tensors(result) if x.untyped_storage().data_ptr() not in inputs]
        changed = [values.get(a.name) for a in schema if a.alias_info and a.alias_info.is_write]
        self.write(str(func), _tensors([fresh, changed]))
        return result

    def launch(self, kernel: str, constant: list[tuple[str, Tensor]], waits: bool) -> None:
        """A kernel that reads `constant` early. waits: whether it waits before the next begins."""
        for name, tensor in constant:
            read = _addresses(tensor)
            overlap = (span for span in self._writers if read.start < span.stop and span.start < read.stop)
            if written := next(overlap, None):
                raise RuntimeError(
                    f"{self._stage}: {kernel} reads {name} before {self._writers[written]}, which writes it, "
                    "has ended; compute it before the stage and make it an input."
                )
        if waits:
            self._writers.clear()

    def write(self, writer: str, tensors: Iterable[Tensor]) -> None:
        """A launch or an operation writes these."""
        for tensor in tensors:
            self._writers[_addresses(tensor)] = writer


_CHECK: ContextVar[EarlyReads | None] = ContextVar("early_reads", default=None)
_signature = cache(inspect.signature)


def reads_early(constant: str = "", waits: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare which arguments a launch reads early, if its argument pdl is set; none if computed is set, too.
    waits: whether its kernel waits before it lets the next one begin."""

    def declared(launch: Callable[P, R]) -> Callable[P, R]:
        @wraps(launch)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if (check := _CHECK.get()) and kwargs.get("pdl"):
                early = "" if kwargs.get("computed") else constant
                check.launch(launch.__name__, _named(early, launch, args, kwargs), waits)
            return launch(*args, **kwargs)

        return checked

    return declared


def writing(written: str, reference: Callable[..., object], launch: Callable[P, R]) -> Callable[P, R]:
    """Return a launch that tells EarlyReads what it writes. written: names of arguments of its reference,
    and their fields, such as "x norm.squares"."""

    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        result = launch(*args, **kwargs)
        if check := _CHECK.get():
            check.write(reference.__name__, (x for _, x in _named(written, reference, args, kwargs)))
        return result

    return recorded


def _named(names: str, function: Callable[..., object], args: Any, kwargs: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors of a call's arguments with their names."""
    arguments, named = _signature(function).bind(*args, **kwargs).arguments, []
    for name in names.split():
        first, *fields = name.split(".")
        value = reduce(lambda value, field: getattr(value, field, None), fields, arguments.get(first))
        named += [(name, tensor) for tensor in _tensors(value)]
    return named


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield a value, if it is a tensor, and the tensors in tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _addresses(tensor: Tensor) -> range:
    """Return the addresses from a tensor's first byte to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    bytes_ = (last + 1) * tensor.element_size() if tensor.numel() else 0
    return range(tensor.data_ptr(), tensor.data_ptr() + bytes_)
