"""Tensors of a file that torch.save wrote, read as data: nothing in it is imported or called.

Such a file is an archive with one member per storage, uncompressed, and a pickle that says which tensor lies
where. A pickle is a program. Here its opcodes are followed by a reader that knows dictionaries of tensors,
also one in another, what TRAINING names, and nothing else: it refuses any other.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_BYTES = 4 << 20
"""Largest pickle that is read: some 20,000 tensors."""
STORAGES = {
    "torch FloatStorage": ("F32", torch.float32),
    "torch BFloat16Storage": ("BF16", torch.bfloat16),
    "torch HalfStorage": ("F16", torch.float16),
    "torch DoubleStorage": ("F64", torch.float64),
    "torch LongStorage": ("I64", torch.int64),
    "torch ByteStorage": ("U8", torch.uint8),
}
TRAINING, DTYPES = ("step", "torch_dtype"), ("torch float32", "torch bfloat16", "torch float16")
"""Entries beside dictionaries of tensors that concern a training, and values of the second."""
REBUILD, ORDERED = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
_VALUES = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class Saved(NamedTuple):
    """Where a tensor lies. member: of the archive; offset: its first number there."""

    member: str
    dtype: str
    offset: int
    shape: tuple[int, ...]

    def get_shape(self) -> tuple[int, ...]:
        """As a slice of safetensors."""
        return self.shape

    def get_dtype(self) -> str:
        """As a slice of safetensors."""
        return self.dtype


class TorchFile:
    """An opened file with the methods that safetensors' have. Raises ValueError if it holds anything but
    tensors by name, or is broken."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._archive = zipfile.ZipFile(file)
            (pickle,) = (name for name in self._archive.namelist() if name.endswith("/data.pkl"))
            if self._archive.getinfo(pickle).file_size > MOST_BYTES:
                raise ValueError(f"its index has more than {MOST_BYTES} bytes")
            self._root = pickle.removesuffix("data.pkl") + "data/"
            self._tensors = self._read(self._archive.read(pickle))
        except (ValueError, KeyError, IndexError, TypeError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{file} is not a file of tensors alone ({error}); save its state_dict."
            ) from error

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return [*self._tensors]

    def metadata(self) -> None:
        """There is none."""

    def get_slice(self, name: str) -> Any:
        """Shape and dtype; with an index, those rows."""
        return _Rows(self, name)

    def get_tensor(self, name: str) -> Tensor:
        """The tensor. Raises ValueError if the member is too short."""
        saved = self._tensors[name]
        info = self._archive.getinfo(self._root + saved.member)
        dtype = next(torch_dtype for label, torch_dtype in STORAGES.values() if label == saved.dtype)
        numbers = torch.Size(saved.shape).numel()
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.file_size < (saved.offset + numbers) * dtype.itemsize
        ):
            raise ValueError(f"{self._file}: {name} does not lie where it should; copy the file again.")
        if not numbers:
            return torch.zeros(saved.shape, dtype=dtype)
        memory = bytearray(self._archive.read(info))
        return torch.frombuffer(memory, dtype=dtype)[saved.offset : saved.offset + numbers].view(saved.shape)

    def saved(self, name: str) -> Saved:
        """Where a tensor lies."""
        return self._tensors[name]

    def __enter__(self) -> TorchFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._archive.close()

    def _read(self, pickle: bytes) -> dict[str, Saved]:
        content = _Reader().read(pickle)
        parts = content if isinstance(content, dict) else {"": content}
        if any(isinstance(part, dict) for part in parts.values()):
            content = {
                f"{part}.{name}": value
                for part, inner in parts.items()
                for name, value in (inner if isinstance(inner, dict) else {"": inner}).items()
                if part not in TRAINING
            }
        if not isinstance(content, dict) or not all(isinstance(value, Saved) for value in content.values()):
            raise ValueError("it is no dictionary of tensors")
        return content


class _Rows:
    def __init__(self, opened: TorchFile, name: str) -> None:
        self._opened, self._name = opened, name
        self.get_shape, self.get_dtype = opened.saved(name).get_shape, opened.saved(name).get_dtype

    def __getitem__(self, rows: slice) -> Tensor:
        return self._opened.get_tensor(self._name)[rows]


class _Reader:
    """Follows the opcodes of a pickle. Raises ValueError for one that tensors do not need."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, pickle: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("its index ends too early")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(argument)
        elif name in ("NEWTRUE", "NEWFALSE", "NONE"):
            stack.append(None)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            count = _TUPLES[name]
            values = [stack.pop() for _ in range(count)]
            stack.append(tuple(reversed(values)))
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "GLOBAL" and argument in (REBUILD, ORDERED, *STORAGES, *DTYPES):
            stack.append(argument)
        elif name == "BINPERSID":
            kind, storage, member, _, _ = stack.pop()
            if kind != "storage" or storage not in STORAGES or not str(member).isalnum():
                raise ValueError(f"it has a {storage}")
            stack.append((STORAGES[storage][0], str(member)))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_tensor(*arguments) if function == REBUILD else _empty(function, arguments))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif name == "SETITEMS":
            items = self._marked()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "BUILD" and isinstance(stack[-2], dict):  # versions of modules
            stack.pop()
        else:
            raise ValueError(f"its index has {name} {argument if name == 'GLOBAL' else ''}".rstrip())

    def _marked(self) -> list[Any]:
        last = len(self._stack) - 1 - self._stack[::-1].index(_MARK)
        values = self._stack[last + 1 :]
        del self._stack[last:]
        return values


def _tensor(storage: tuple[str, str], offset: int, shape: tuple[int, ...], stride: Any, *_: Any) -> Saved:
    contiguous = []
    step = 1
    for size in reversed(shape):
        contiguous.append(step)
        step *= size
    if tuple(reversed(contiguous)) != tuple(stride) and step:
        raise ValueError("it has a tensor whose rows do not lie one after another")
    dtype, member = storage
    return Saved(member, dtype, int(offset), tuple(int(size) for size in shape))


def _empty(function: Any, arguments: Any) -> dict[Any, Any]:
    if function != ORDERED or arguments != ():
        raise ValueError(f"its index calls {function}")
    return {}
