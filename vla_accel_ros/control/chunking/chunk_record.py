"""A chunk in ROS units as bytes, for the shared memory between inference and trajectory.

A record holds a fixed header, the writer's name, the joint names, the actions and the magnitudes of their
last updates. That is what moves the robot. What it takes to compute the chunk again (its joints, its
agreement) is only in the messages, which are recorded. Another process wrote the record, so the reader trusts
nothing in it: it compares all lengths before it reads anything, and refuses with one sentence.
"""

from __future__ import annotations

import struct

import numpy as np

from vla_accel_ros.control.chunking.plausibility import MOST_ACTIONS, check_chunk_size, received_chunk
from vla_accel_ros.types import Chunk

VERSION = 1
_MAGIC = b"VLACHUNK"
# magic, version; horizon, columns, execution_horizon, magnitudes, bytes of writer and names; stamp_ns,
# step_dt_s, kv_version, request_id, inference_s
_HEAD = struct.Struct("<8sI6Iqd2Qd")
_WORDS = 4096
_U64 = 2**64


class ChunkWriter:
    """Makes records of chunks. joints: names of their D columns. writer: the node that makes them.

    Attribute `most_bytes`: upper bound on the size of a record. Raises ValueError for names that are too
    long.
    """

    def __init__(self, joints: tuple[str, ...], writer: str) -> None:
        self._columns = len(joints)
        self._writer, self._names = writer.encode(), "\n".join(joints).encode()
        words = len(self._writer) + len(self._names)
        if words > _WORDS:
            raise ValueError(
                f"the names of the node and {len(joints)} joints have {words} bytes: give at most {_WORDS}"
            )
        self.most_bytes = _HEAD.size + words + 4 * MOST_ACTIONS * (self._columns + 1)

    def record(self, chunk: Chunk, actions: np.ndarray, inference_s: float = 0.0) -> bytes:
        """Returns a chunk's bytes. actions: float [H, D], the chunk's actions in ROS units."""
        actions = np.ascontiguousarray(actions, dtype=np.float32)
        magnitudes = np.ascontiguousarray(chunk.update_magnitudes, dtype=np.float32)
        head = _HEAD.pack(
            *(_MAGIC, VERSION, *actions.shape, chunk.execution_horizon or 0, magnitudes.size),
            *(len(self._writer), len(self._names), chunk.stamp_ns, chunk.step_dt_s),
            *(chunk.kv_version % _U64, chunk.request_id % _U64, inference_s),
        )
        return b"".join((head, self._writer, self._names, actions.tobytes(), magnitudes.tobytes()))


class ChunkReader:
    """Reads records for a robot with these joints. Attribute `writer`: the node that wrote the last record,
    empty before the first."""

    def __init__(self, joints: tuple[str, ...]) -> None:
        self._joints, self.writer = joints, ""
        self._words, self._names = b"", tuple[str, ...]()

    def chunk(self, data: bytes) -> Chunk:
        """Decodes a record into a Chunk whose columns are in the order of the robot's joints; its arrays are
        read-only.

        Raises ValueError, in one sentence, if the data is not a record of this version, and as
        `received_chunk` does.
        """
        if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"the chunk slot has {len(data)} bytes that are not a chunk: restart its writer")
        head = _HEAD.unpack_from(data)
        _, version, horizon, columns, execution, magnitudes, writer, names, *padding = head
        if version != VERSION:
            raise ValueError(
                f"the chunk slot has chunks of version {version}, this program reads version {VERSION}: run "
                "all nodes from one release"
            )
        stamp_ns, step_dt_s, kv_version, request_id, _ = padding
        who = f"chunk {request_id} of the slot"
        check_chunk_size(who, horizon, columns, step_dt_s)
        words = writer + names
        if words > _WORDS or len(data) != _HEAD.size + words + 4 * (horizon * columns + magnitudes):
            raise ValueError(
                f"{who} declares {horizon} x {columns} actions and {magnitudes} magnitudes, which do not fit "
                f"its {len(data)} bytes: restart its writer"
            )
        self._read_words(data[_HEAD.size : _HEAD.size + words], writer, who)
        offset = _HEAD.size + words
        numbers = np.frombuffer(data, np.float32, horizon * columns + magnitudes, offset)
        return received_chunk(
            who,
            self._joints,
            names=self._names,
            actions=numbers[: horizon * columns],
            horizon=horizon,
            columns=columns,
            execution_horizon=execution,
            step_dt_s=step_dt_s,
            stamp_ns=stamp_ns,
            kv_version=kv_version,
            request_id=request_id,
            update_magnitudes=numbers[horizon * columns :],
        )

    def _read_words(self, words: bytes, writer: int, who: str) -> None:
        """Decode the names, which are the same in nearly every record."""
        if words == self._words:
            return
        try:
            self.writer, names = words[:writer].decode(), words[writer:].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{who} has names that are not UTF-8: restart its writer") from error
        self._words, self._names = words, tuple(names.split("\n"))
