"""Messages as bytes: those that public clients and servers sent, and those that nobody should."""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack
import numpy as np
import pytest

from vla_accel_ros.wire.arrays import MOST_ITEMS, pack, unpack

RECORDED = Path(__file__).resolve().parents[1] / "data" / "openpi_wire"


def zoo() -> list[bytes]:
    """27 messages of openpi-client: orders, strides, dtypes, scalars, None, bytes, nested."""
    data, messages = (RECORDED / "openpi_zoo_requests.msgpack_seq.bin").read_bytes(), []
    while data:
        (length,) = struct.unpack_from(">I", data)
        messages.append(data[4 : 4 + length])
        data = data[4 + length :]
    return messages


@pytest.mark.parametrize("message", zoo(), ids=map(str, range(27)))
def test_openpi_client_messages_are_packed_again_to_the_byte(message):
    assert pack(unpack(message)) == message


@pytest.mark.parametrize(
    "name",
    [
        *("openpi_s2c_0_binary", "openpi_s2c_1_binary", "openpi_s2c_2_binary", "openpi_c2s_1_binary"),
        *("pw_c2s_1_binary", "pw_s2c_1_binary"),
    ],
)
def test_recorded_frames_are_packed_again_to_the_byte(name):
    message = (RECORDED / f"{name}.bin").read_bytes()
    assert pack(unpack(message)) == message


def test_an_array_keeps_dtype_shape_and_values():
    array = np.arange(24, dtype=">i2").reshape(2, 3, 4)[:, ::-1]
    result = unpack(pack({"a": array, "n": np.float32(0.1), "empty": np.zeros((0, 7))}))
    assert result["a"].dtype == array.dtype and np.array_equal(result["a"], array)
    assert result["n"] == np.float32(0.1) and result["n"].dtype == np.float32
    assert result["empty"].shape == (0, 7)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12_000.0).reshape(100, 120)[::-2, ::3],
        np.asfortranarray(np.arange(12_000.0).reshape(100, 120)),
        np.arange(12_000, dtype=">i2").reshape(10, 20, 60),
        np.zeros((70, 70), "<M8[D]"),
        np.full((40, 40), "ab"),
    ],
    ids=["strided", "Fortran", "big-endian", "dates", "text"],
)
def test_a_large_array_is_packed_in_c_order(array):
    values = unpack(pack({"values": array}))["values"]
    assert values.dtype == array.dtype and np.array_equal(values, array)


def test_the_dialects_of_other_clients_are_read():
    expected = np.arange(3, dtype=np.float32)
    fields = {"data": expected.tobytes(), "shape": [3]}
    with_text_keys = msgpack.packb({"a": {"__ndarray__": True, "dtype": "<f4", **fields}})
    of_vllm = msgpack.packb({"a": {"nd": True, "type": "<f4", "kind": "", **fields}})
    for message in (with_text_keys, of_vllm):
        assert np.array_equal(unpack(message)["a"], expected)


def array(dtype: object, shape: object, data: object) -> bytes:
    return msgpack.packb(
        {"echo": {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}}, strict_types=False
    )


def scalar(dtype: object, data: object) -> bytes:
    return msgpack.packb({"echo": {b"__npgeneric__": True, b"data": data, b"dtype": dtype}})


HOSTILE = {
    "object": array("|O", [1], b"A" * 8),
    "object without items": array("|O", [0], b""),
    "void": array("|V8", [1], b"A" * 8),
    "structured": array([["a", "<f4"]], [1], b"A" * 4),
    "subarray": array("(3,)<f4", [1], b"A" * 12),
    "complex": array("<c8", [1], b"A" * 8),
    "unknown": array("nonsense", [1], b"A"),
    "text of a billion letters": array("<U1000000000", [0], b""),
    "a billion texts of no letters": array("<U0", [1 << 30], b""),
    "invalid letter": array("<U1", [1], b"\xff" * 4),
    "huge shape": array("<f4", [1 << 40], b"A" * 4),
    "huge shape of nothing": array("<f4", [0, 1 << 40], b""),
    "negative shape": array("<f4", [-1], b"A" * 8),
    "shape is a number": array("<f4", 2, b"A" * 8),
    "shape of fractions": array("<f4", [1.0], b"A" * 4),
    "shape of booleans": array("<f4", [True], b"A" * 4),
    "many dimensions": array("<f4", [1] * 64, b"A" * 4),
    "more bytes than shape": array("<f4", [1], b"A" * 8),
    "fewer bytes than shape": array("<f4", [2], b"A" * 4),
    "bytes are text": array("<f4", [1], "AAAA"),
    "no shape": msgpack.packb({"a": {b"__ndarray__": True, b"data": b"A" * 4, b"dtype": "<f4"}}),
    "bytes of a billion": scalar("S", 10**9),
    "scalar object": scalar("O", 1),
    "scalar of text": scalar("<f4", "1"),
    "scalar that does not fit": scalar("u1", -1),
    "whole number that is none": scalar("<i8", float("nan")),
    "scalar of a list": scalar("<f4", [1, 2]),
    "nothing": b"",
    "no map": msgpack.packb([1, 2]),
    "invalid byte": b"\xc1",
    "trailing byte": msgpack.packb({"a": 1}) + b"\0",
    "cut": pack({"a": np.zeros(100)})[:-5],
    "number as key": msgpack.packb({1: 2}),
    "ext": msgpack.packb({"a": msgpack.ExtType(5, b"ab")}),
    "invalid utf-8": b"\x81\xa1\xff\x01",
    "deep": b"\x81\xa1a" + b"\x91" * 100_000,
    "array of 4 G entries": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "many maps": msgpack.packb({"a": [[{}] * 4000] * (MOST_ITEMS // 4000 + 1)}),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_hostile_messages_are_refused_in_a_sentence(message):
    with pytest.raises(ValueError) as error:
        unpack(message)
    assert 0 < len(str(error.value)) < 500 and "\n" not in str(error.value)


def test_a_boolean_is_true_or_false_whatever_its_byte():
    result = unpack(array("|b1", [2], b"\x07\x00"))["echo"]
    assert result.tolist() == [True, False] and result.tobytes() == b"\x01\x00"


@pytest.mark.parametrize("value", [np.array([None]), np.zeros(1, "V8"), np.zeros(1, "c8"), {1}, 1 << 64])
def test_what_the_format_does_not_have_is_not_packed(value):
    with pytest.raises(ValueError):
        pack({"a": value})
