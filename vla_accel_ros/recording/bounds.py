"""Limits on what is read from a bag: decompressed sizes and message definitions.

A bag may come from anyone. A chunk of a few kilobytes can hold gigabytes of zeros. A message definition can
contain itself, or a list of four billion empty items, which a decoder makes one by one. Both are detected
before memory is allocated. The limits are far above what recorders write.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, McapRecord, Message, Schema

MOST_CHUNK_BYTES = 128 << 20
"""Limit for a decompressed chunk: one picture of an 8K camera has 100 MB; rosbag2 ends chunks at 1 or 4
MB."""
MOST_RECORD_BYTES = MOST_CHUNK_BYTES + (1 << 20)
MOST_TOPICS = 4096
"""A large robot has some hundreds."""
MOST_DEFINITION_BYTES = 1 << 18
"""Limit for a message type with all nested ones; the longest of ROS 2's own has 30 kB."""
MOST_PARTS = 100_000
"""Limit on messages nested in one, unbounded lists not counted; a PoseWithCovariance has 4."""

_PIECE_BYTES = 4 << 20
_FIELD = re.compile(r"([\w/]+)(?:<=\d+)?(?:\[(?:(<=)?(\d+))?\]|())", re.ASCII)
_UNCHECKED = ("uint8", "byte")
"""The decoder reads fixed arrays of these beyond the end of a message without an error."""
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_PRIMITIVE = {*_INTEGERS, "bool", "byte", "char", "float32", "float64", "string", "wstring"}


class Damaged(Exception):
    """The bytes are damaged, or exceed a limit."""


def chunk_records(chunk: Chunk) -> Iterator[McapRecord]:
    """The records of a chunk, in order. Raises Damaged."""
    data = _decompressed(chunk)
    if chunk.uncompressed_crc != 0 and zlib.crc32(data) != chunk.uncompressed_crc:
        raise Damaged("crc validation failed in a chunk")
    stream = ReadDataStream(cast(IO[bytes], _Stream(data)))
    while stream.count < len(data):
        opcode, length = stream.read1(), stream.read8()
        if opcode == 0 or length > len(data) - stream.count:
            raise Damaged("a chunk holds an invalid record")
        if opcode == Opcode.MESSAGE:
            yield Message.read(stream, length)
        elif opcode == Opcode.CHANNEL:
            yield Channel.read(stream)
        elif opcode == Opcode.SCHEMA:
            yield Schema.read(stream)
        else:
            stream.read(length)


def _decompressed(chunk: Chunk) -> bytes | bytearray:
    """The chunk's bytes, exactly as many as it declares. Raises Damaged."""
    size = chunk.uncompressed_size
    if size > MOST_CHUNK_BYTES:
        raise Damaged(
            f"a chunk declares {size / 1e6:.0f} MB, at most {MOST_CHUNK_BYTES / 1e6:.0f} MB are "
            "read at once: write it again with smaller chunks (ros2 bag convert)"
        )
    data: bytes | bytearray
    if chunk.compression == "zstd":
        import zstandard

        if zstandard.frame_content_size(chunk.data) not in (-1, size):
            raise Damaged("a chunk does not have the size that it declares")
        data = zstandard.ZstdDecompressor().decompress(chunk.data, max_output_size=size) if size else b""
    elif chunk.compression == "lz4":
        import lz4.frame

        data = _unpacked(lz4.frame.LZ4FrameDecompressor(), chunk.data, size)
    elif chunk.compression == "":
        data = chunk.data
    else:
        raise Damaged(f"a chunk is compressed as {chunk.compression[:40]!r}, not as zstd or lz4")
    if len(data) != size:
        raise Damaged("a chunk does not have the size that it declares")
    return data


def _unpacked(lz4: Any, packed: bytes, size: int) -> bytearray:
    """Decompress piece by piece into one buffer; at once it would be in memory twice."""
    data, length = bytearray(size), 0
    piece = lz4.decompress(packed, max_length=_PIECE_BYTES)
    while piece:
        if length + len(piece) > size:
            raise Damaged("a chunk does not have the size that it declares")
        data[length : length + len(piece)] = piece
        length += len(piece)
        piece = b"" if lz4.eof else lz4.decompress(b"", max_length=_PIECE_BYTES)
    return data if length == size else data[:length]


class _Stream:
    """Reads bytes in order without copying them all."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data, self._at = memoryview(data), 0

    def read(self, size: int) -> bytes:
        self._at += size
        return bytes(self._data[self._at - size : self._at])


def check_definition(schema: Schema) -> None:
    """Raises ValueError, one phrase, if a definition asks for more than a message's bytes can hold."""
    if len(schema.data) > MOST_DEFINITION_BYTES:
        raise ValueError(
            f"its definition has {len(schema.data)} bytes, at most {MOST_DEFINITION_BYTES} are read"
        )
    fields = _fields(schema)
    parts: dict[str, int] = {}
    smallest: dict[str, int] = {}

    def visit(kind: str, within: tuple[str, ...]) -> None:
        """Count a type's nested messages, and the least number of bytes that a message of it takes."""
        if kind in parts:
            return
        if kind in within:
            raise ValueError(f"its definition contains itself: {kind}")
        number, size = 1, 0 if fields[kind] else 1
        for inner, listed, count in fields[kind]:
            if inner in fields:
                visit(inner, (*within, kind))
                if listed and count is None and not smallest[inner]:
                    raise ValueError(f"its definition has a list of {inner}, which may have no bytes")
                number += (count if count is not None else 1) * parts[inner]
                size += 4 if listed and count is None else (count or 0 if listed else 1) * smallest[inner]
            elif not (listed and count is not None and (inner in _UNCHECKED or not count)):
                size += 1
        if number > MOST_PARTS:
            raise ValueError(f"its definition has more than {MOST_PARTS} nested messages")
        parts[kind], smallest[kind] = number, size

    for kind in fields:
        visit(kind, ())


def _fields(schema: Schema) -> dict[str, list[tuple[str, bool, int | None]]]:
    """The fields of each type: (type, whether it is a list, its length if that is fixed)."""
    fields: dict[str, list[tuple[str, bool, int | None]]] = {}
    name = _short(schema.name)
    for line in schema.data.decode().splitlines():
        words = line.partition("#")[0].split(maxsplit=1)
        if line.startswith("MSG: "):
            name = _short(line[5:].strip())
        elif len(words) == 2 and "=" not in words[1]:
            match = _FIELD.fullmatch(words[0])
            if match is None:
                continue
            kind = match[1] if match[1] in _PRIMITIVE else _full(match[1], name)
            fixed = match[3] is not None and match[2] is None
            fields.setdefault(name, []).append((kind, match[4] is None, int(match[3]) if fixed else None))
        fields.setdefault(name, [])
    return fields


def _short(name: str) -> str:
    return name.replace("/msg/", "/")


def _full(kind: str, within: str) -> str:
    if kind == "Header":
        return "std_msgs/Header"
    return _short(kind) if "/" in kind else f"{within.rpartition('/')[0]}/{kind}"
