"""Messages of openpi's websocket: msgpack with numpy arrays, to the byte as openpi-client packs them.

An array is a map of four entries, whose keys are msgpack `bin`; the dialects with `str` keys and vLLM's `nd`
maps are read, never written. Only dtypes on a list reach numpy: the public decoders take `|O`, which makes
pointers of bytes from the network. An array has as many bytes as its shape says, and the entries of maps and
lists are bounded, so that no message costs much more memory than its own length.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgpack
import numpy as np

MOST_BYTES = 1 << 25
"""Of a message: four pictures of 1080 x 1920 fit."""
MOST_ITEMS, MOST_LENGTH = 20_000, 4096
"""Entries of all maps and lists of a message, and of one."""
MOST_DIMS = 8

_COPIED = 4096
"""Smaller arrays are copied sooner than viewed."""

_NUMBER = re.compile(r"[<>=|]?(?:b1|i[1248]|u[1248]|f[248])")
_OTHER = re.compile(r"[<>=|]?(?:[US]\d{1,4}|[mM]8\[[a-zA-Z]{1,2}\])")


def pack(value: Any) -> bytes:
    """A message. Arrays are written in C order. Raises ValueError for what the format does not have."""
    try:
        return bytes(msgpack.packb(value, default=_encoded))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"cannot be packed: {error}") from error


def unpack(message: bytes | bytearray | memoryview, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The map of a message; its arrays are read-only views of it. Raises ValueError, in one sentence, for
    anything else."""
    value = unpack_any(message, most_bytes)
    if not isinstance(value, dict):
        raise ValueError(f"the message is {type(value).__name__}: send a map of the observation")
    return value


def unpack_any(message: bytes | bytearray | memoryview, most_bytes: int = MOST_BYTES) -> Any:
    """As unpack, whatever the message holds."""
    if len(message) > most_bytes:
        raise ValueError(f"the message has {len(message)} bytes, at most {most_bytes} are read")
    reader = _Reader()
    try:
        return msgpack.unpackb(
            message,
            object_pairs_hook=reader.read_map,
            list_hook=reader.read_list,
            max_array_len=MOST_LENGTH,
            max_map_len=MOST_LENGTH,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(
            f"the message is no msgpack map as openpi-client packs it: {_brief(error)}"
        ) from error


class _Reader:
    """Turns the maps and lists of one message into arrays and dicts, and counts them."""

    def __init__(self) -> None:
        self._items = 0

    def read_list(self, items: list[Any]) -> list[Any]:
        self._count(items)
        return items

    def read_map(self, pairs: list[tuple[Any, Any]]) -> Any:
        self._count(pairs)
        entries = {_text(key): value for key, value in pairs}
        if "__ndarray__" in entries:
            return _array(entries.get("dtype"), entries.get("shape"), entries.get("data"))
        if "__npgeneric__" in entries:
            return _scalar(entries.get("dtype"), entries.get("data"))
        if entries.get("nd") is True and "type" in entries:
            return _array(_text(entries["type"]), entries.get("shape"), entries.get("data"))
        return entries

    def _count(self, items: list[Any]) -> None:
        self._items += len(items) + 1
        if self._items > MOST_ITEMS:
            raise ValueError(f"more than {MOST_ITEMS} entries: send numbers as arrays")


def _text(key: Any) -> str:
    if not isinstance(key, (str, bytes)):
        raise ValueError(f"the key {str(key)[:40]} is no text")
    return key if isinstance(key, str) else key.decode()


def _array(dtype: Any, shape: Any, data: Any) -> np.ndarray:
    if not isinstance(dtype, str) or not isinstance(data, bytes) or not isinstance(shape, list):
        raise ValueError("an array needs dtype (text), shape (list) and data (bytes)")
    if len(shape) > MOST_DIMS or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape):
        raise ValueError(f"an array's shape is {str(shape)[:60]}")
    if not _NUMBER.fullmatch(dtype) and not _OTHER.fullmatch(dtype):
        raise ValueError(f"an array's dtype is {dtype[:40]!r}: send bool, int, uint or float")
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"an array {shape} of {dtype} has {len(data)} bytes")
    if kind.kind == "U":
        data.decode("utf-32-be" if dtype[0] == ">" else "utf-32-le")  # numpy would read any code point
    if kind.kind == "b":
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    if not kind.itemsize:  # numpy gives each of these texts a letter's memory
        if math.prod(shape) > MOST_LENGTH:
            raise ValueError(f"an array {shape} of {dtype} has more than {MOST_LENGTH} entries")
        return np.zeros(shape, kind)
    return np.frombuffer(data, kind).reshape(shape)


def _scalar(dtype: Any, value: Any) -> np.generic:
    if not isinstance(dtype, str) or not _NUMBER.fullmatch(dtype):
        raise ValueError(f"a number's dtype is {str(dtype)[:40]!r}: send bool, int, uint or float")
    if not isinstance(value, (bool, int, float)):
        raise ValueError(f"a number is {type(value).__name__}")
    kind = np.dtype(dtype)
    if kind.kind in "iu" and (isinstance(value, float) or not _fits(value, np.iinfo(kind))):
        raise ValueError(f"the number {value} is no {dtype}")
    with np.errstate(over="ignore"):
        return kind.type(np.asarray(value).astype(dtype).item())


def _fits(value: int, kind: np.iinfo) -> bool:
    return bool(kind.min <= value <= kind.max)


def _encoded(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "VOc":
        return {
            b"__ndarray__": True,
            b"data": _bytes(value),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic) and value.dtype.kind not in "VOc":
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise ValueError(f"cannot be packed: {type(value).__name__} {getattr(value, 'dtype', '')}".rstrip())


def _bytes(value: np.ndarray) -> memoryview | bytes:
    """In C order; large ones that have it are not copied."""
    if value.nbytes >= _COPIED:
        return value.reshape(-1).view(np.uint8).data
    return value.tobytes()


def _brief(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
