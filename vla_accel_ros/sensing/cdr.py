"""A serialized sensor_msgs/Image, read where it lies.

rclpy would copy the pixels into a Python object for every frame; a raw subscription hands over the bytes as
they came, and all that is needed is to find the pixels in them. The layout is plain CDR (XCDR1): four bytes
that name the endianness, then the fields in order, each number aligned to its size counted from after those
four bytes, each string with its length and a final NUL. The bytes come from the network, so whatever is wrong
with them is a ValueError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

_ORDERS = {b"\x00\x00": ">", b"\x00\x01": "<"}
_HEADER = 4


@dataclass(frozen=True)
class ImageView:
    """The fields of a sensor_msgs/Image; `data` is a view of the message's bytes, alive as long as they are.

    stamp_ns: capture time, nanoseconds of the ROS clock. step: bytes from one row to the next.
    data: uint8 [N], not copied.
    """

    stamp_ns: int
    frame_id: str
    height: int
    width: int
    encoding: str
    is_bigendian: bool
    step: int
    data: np.ndarray


def image_view(buffer: bytes | bytearray | memoryview) -> ImageView:
    """Parse a serialized sensor_msgs/Image without copying its pixels.

    Raises ValueError when the bytes are not one: cut short, of another encoding than plain CDR, a string
    without its end, a time that is none.
    """
    message: memoryview = memoryview(buffer).cast("B")
    order = _ORDERS.get(bytes(message[:2]))
    if order is None or len(message) < _HEADER:
        raise ValueError(
            f"image message begins with {bytes(message[:4])!r}, not with a plain CDR header: subscribe raw "
            "to sensor_msgs/Image"
        )
    reader = _Reader(message[_HEADER:], order)
    sec, nanosec = reader.number("i", "header.stamp.sec"), reader.number("I", "header.stamp.nanosec")
    if nanosec >= 1_000_000_000:
        raise ValueError(f"image header.stamp.nanosec is {nanosec}, a second or more: mend the driver")
    return ImageView(
        stamp_ns=sec * 1_000_000_000 + nanosec,
        frame_id=reader.text("header.frame_id"),
        height=reader.number("I", "height"),
        width=reader.number("I", "width"),
        encoding=reader.text("encoding"),
        is_bigendian=reader.number("B", "is_bigendian") != 0,
        step=reader.number("I", "step"),
        data=np.frombuffer(reader.block(reader.number("I", "data"), "data"), dtype=np.uint8),
    )


class _Reader:
    """A cursor in the body of a message. order: struct's '<' or '>'."""

    def __init__(self, body: memoryview, order: str):
        self._body, self._order, self._at = body, order, 0

    def number(self, kind: str, field: str) -> int:
        size = struct.calcsize(self._order + kind)
        self._at += -self._at % size
        return struct.unpack(self._order + kind, self.block(size, field))[0]

    def text(self, field: str) -> str:
        raw = bytes(self.block(self.number("I", field), field))
        if raw and raw[-1] != 0:
            raise ValueError(f"image {field} has no end: the message is damaged")
        return raw[:-1].decode("utf-8", errors="replace")

    def block(self, size: int, field: str) -> memoryview:
        if self._at + size > len(self._body):
            raise ValueError(
                f"image message ends in {field}: it has {len(self._body) + _HEADER} bytes, this needs "
                f"{self._at + size + _HEADER}; it was cut short or is no sensor_msgs/Image"
            )
        self._at += size
        return self._body[self._at - size : self._at]
