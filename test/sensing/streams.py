"""Builders that the sensing tests share: messages as they come from a camera, and a contract."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.image import ImageView

S = 1_000_000_000
MS = S // 1000
SIM_ARM = Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml"


def make_contract() -> Contract:
    return Contract.load(SIM_ARM)


def make_view(
    data: np.ndarray | bytes,
    height: int,
    width: int,
    encoding: str,
    step: int | None = None,
    stamp_ns: int = 0,
) -> ImageView:
    """An image as its message would give it: `data` is all bytes, `step` those of a row."""
    flat = np.frombuffer(bytes(data), np.uint8)
    step = len(flat) // height if step is None else step
    return ImageView(stamp_ns, "camera", height, width, encoding, False, step, flat)


def pad_rows(rows: np.ndarray, padding: int) -> bytes:
    """uint8 [rows, n] with `padding` bytes of 0xEE behind each row."""
    flat = rows.reshape(len(rows), -1)
    return np.hstack([flat, np.full((len(rows), padding), 0xEE, np.uint8)]).tobytes()


def serialize_image(
    *,
    stamp: tuple[int, int] = (12, 345),
    frame_id: bytes = b"front",
    size: tuple[int, int] = (2, 3),
    encoding: bytes = b"rgb8",
    is_bigendian: int = 0,
    step: int = 9,
    data: bytes = bytes(range(18)),
    order: str = "<",
) -> bytes:
    """A sensor_msgs/Image in plain CDR of either endianness, written after the standard."""
    out = bytearray()

    def align(to: int) -> None:
        out.extend(bytes(-len(out) % to))

    def number(kind: str, value: int) -> None:
        align(struct.calcsize(order + kind))
        out.extend(struct.pack(order + kind, value))

    def text(value: bytes) -> None:
        number("I", len(value) + 1)
        out.extend(value + b"\0")

    number("i", stamp[0])
    number("I", stamp[1])
    text(frame_id)
    number("I", size[0])
    number("I", size[1])
    text(encoding)
    number("B", is_bigendian)
    number("I", step)
    number("I", len(data))
    out.extend(data)
    return (b"\x00\x01" if order == "<" else b"\x00\x00") + b"\x00\x00" + bytes(out)
