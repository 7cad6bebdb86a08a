"""A chunk as bytes between two processes: to the bit, and nothing that is damaged or alien becomes motion."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from vla_accel_ros.control.chunking.chunk_record import ChunkReader, ChunkWriter
from vla_accel_ros.types import Chunk

JOINTS = ("a", "b", "c")
STAMP = 1_700_000_000_123_456_789
HEAD = 92


def make_chunk(horizon: int = 4, execution_horizon: int | None = None) -> Chunk:
    actions = np.random.default_rng(0).normal(size=(horizon, 3)).astype(np.float32)
    sizes = np.arange(horizon, dtype=np.float32)
    return Chunk(actions, STAMP, 1 / 30, 7, 2**63 + 8, sizes, execution_horizon=execution_horizon)


def make_record(chunk: Chunk | None = None, joints: tuple[str, ...] = JOINTS) -> bytes:
    chunk = make_chunk() if chunk is None else chunk
    return ChunkWriter(joints, "/robot1/inference").record(chunk, chunk.actions, 0.02)


@pytest.mark.parametrize("execution_horizon", [None, 3])
def test_a_chunk_survives_the_way_through_its_record(execution_horizon):
    chunk = make_chunk(execution_horizon=execution_horizon)
    reader = ChunkReader(JOINTS)
    back = reader.chunk(make_record(chunk))
    assert back.actions.tobytes() == chunk.actions.tobytes() and back.actions.dtype == np.float32
    assert back.update_magnitudes.tobytes() == chunk.update_magnitudes.tobytes()
    for name in ("stamp_ns", "step_dt_s", "kv_version", "request_id", "execution_horizon"):
        assert getattr(back, name) == getattr(chunk, name)
    assert reader.writer == "/robot1/inference"


def test_columns_follow_the_joints_that_are_asked_for():
    back = ChunkReader(("c", "a")).chunk(make_record())
    np.testing.assert_array_equal(back.actions, make_chunk().actions[:, [2, 0]])


def test_the_longest_chunk_there_may_be_has_room():
    writer = ChunkWriter(JOINTS, "/inference")
    chunk = replace(make_chunk(256), step_dt_s=0.02)
    assert len(writer.record(chunk, chunk.actions)) <= writer.most_bytes
    with pytest.raises(ValueError, match=r"256 joints .* 4096"):
        ChunkWriter(tuple(f"a_joint_with_a_long_name_{n}" for n in range(256)), "/inference")


def changed(at: int, kind: str, value: object) -> bytes:
    """The record with one field of its head changed."""
    record = bytearray(make_record())
    struct.pack_into(f"<{kind}", record, at, value)
    return bytes(record)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (b"", "the chunk slot has 0 bytes that are not a chunk"),
        (make_record()[:50], "the chunk slot has 50 bytes that are not a chunk"),
        (b"x" * 500, "the chunk slot has 500 bytes that are not a chunk"),
        (changed(8, "I", 2), "has chunks of version 2, this program reads version 1"),
        (make_record()[:-4], "which do not fit its .* bytes: restart its writer"),
        (make_record() + bytes(4), "which do not fit its .* bytes"),
        (changed(12, "I", 5), "declares 5 x 3 actions and 4 magnitudes, which do not fit"),
        (changed(12, "I", 2**32 - 1), "has 4294967295 actions: send at most 256"),
        (changed(16, "I", 257), "has 257 joints: send at most 256"),
        (changed(20, "I", 5), "is to be executed for 5 actions but has 4: give 0 for all"),
        (changed(24, "I", 2**32 - 1), "which do not fit its"),
        (changed(28, "I", 2**32 - 1), "which do not fit its"),
        (changed(44, "d", 0.0), "step_dt_s 0.0"),
        (changed(44, "d", np.nan), "step_dt_s nan"),
        (changed(44, "d", 33.3), "at least 0.001 s and at most 1 s"),
        (changed(HEAD, "B", 0xFF), "has names that are not UTF-8"),
        (make_record(joints=("a", "b", "d")), "has no joint 'c': it has a, b, d"),
        (make_record(joints=("a", "b")), "says 4 x 3 but has 12 numbers for 2 joints"),
    ],
)
def test_what_is_no_chunk_of_this_robot_is_refused_in_a_sentence(record, sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        ChunkReader(JOINTS).chunk(record)
    assert "\n" not in str(refusal.value)


def test_no_time_is_no_chunk():
    empty = replace(make_chunk(), actions=np.zeros((0, 3), np.float32), update_magnitudes=np.zeros(0))
    with pytest.raises(ValueError, match="says 0 x 3"):
        ChunkReader(JOINTS).chunk(make_record(empty))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_no_number_is_refused_with_its_joint(value):
    chunk = make_chunk()
    chunk.actions[2, 1] = value
    with pytest.raises(ValueError, match="joint 'b' in action 2"):
        ChunkReader(JOINTS).chunk(make_record(chunk))


def test_any_flipped_byte_is_a_chunk_or_a_sentence():
    record, rng = make_record(), np.random.default_rng(1)
    for _ in range(5000):
        spoilt = bytearray(record)
        for byte in rng.integers(0, len(record), rng.integers(1, 4)):
            spoilt[byte] = rng.integers(256)
        try:
            chunk = ChunkReader(JOINTS).chunk(bytes(spoilt))
        except ValueError as refusal:
            assert "\n" not in str(refusal)
        else:
            assert chunk.actions.shape[1] == 3 and np.isfinite(chunk.actions).all()
