"""A serialized sensor_msgs/Image or CompressedImage, read where it lies.

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
_LITTLE = b"\x00\x01\x00\x00"
_RGB8 = b"rgb8\0"


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


@dataclass(frozen=True)
class CompressedView:
    """The fields of a sensor_msgs/CompressedImage, see ImageView. format: what the sender says it is."""

    stamp_ns: int
    frame_id: str
    format: str
    data: np.ndarray


def image_view(buffer: bytes | bytearray | memoryview) -> ImageView:
    """Parse a serialized sensor_msgs/Image without copying its pixels.

    Raises ValueError when the bytes are not one: cut short, of another encoding than plain CDR, a string
    without its end, a time that is none.
    """
    reader = _Reader(buffer, "image", "Image")
    return ImageView(
        stamp_ns=reader.stamp_ns(),
        frame_id=reader.text("header.frame_id"),
        height=reader.number("I", "height"),
        width=reader.number("I", "width"),
        encoding=reader.text("encoding"),
        is_bigendian=reader.number("B", "is_bigendian") != 0,
        step=reader.number("I", "step"),
        data=reader.bytes("data"),
    )


def compressed_view(buffer: bytes | bytearray | memoryview) -> CompressedView:
    """Parse a serialized sensor_msgs/CompressedImage without copying its data. Raises as image_view."""
    reader = _Reader(buffer, "compressed image", "CompressedImage")
    return CompressedView(
        stamp_ns=reader.stamp_ns(),
        frame_id=reader.text("header.frame_id"),
        format=reader.text("format"),
        data=reader.bytes("data"),
    )


def image_message(stamp_ns: int, frame_id: str, image: np.ndarray) -> bytearray:
    """A serialized sensor_msgs/Image, rgb8, of uint8 [H, W, 3]; the pixels are copied once."""
    height, width = image.shape[:2]
    name = frame_id.encode() + b"\0"
    head = _LITTLE + struct.pack("<iII", *divmod(stamp_ns, 1_000_000_000), len(name)) + name
    head = _padded(head, 4) + struct.pack("<III", height, width, len(_RGB8)) + _RGB8 + b"\0"
    head = _padded(head, 4) + struct.pack("<II", 3 * width, image.nbytes)
    message = bytearray(len(head) + image.nbytes)
    message[: len(head)] = head
    np.copyto(np.frombuffer(message, np.uint8, offset=len(head)).reshape(image.shape), image)
    return message


def _padded(head: bytes, size: int) -> bytes:
    return head + bytes(-(len(head) - _HEADER) % size)


class _Reader:
    """A cursor in a message. what: its name in errors; kind: its type in sensor_msgs."""

    def __init__(self, buffer: bytes | bytearray | memoryview, what: str, kind: str):
        message: memoryview = memoryview(buffer).cast("B")
        order = _ORDERS.get(bytes(message[:2]))
        if order is None or len(message) < _HEADER:
            raise ValueError(
                f"{what} message begins with {bytes(message[:4])!r}, not with a plain CDR header: subscribe "
                f"raw to sensor_msgs/{kind}"
            )
        self._body, self._order, self._at, self._what, self._kind = message[_HEADER:], order, 0, what, kind

    def stamp_ns(self) -> int:
        sec, nanosec = self.number("i", "header.stamp.sec"), self.number("I", "header.stamp.nanosec")
        if nanosec >= 1_000_000_000:
            raise ValueError(
                f"{self._what} header.stamp.nanosec is {nanosec}, a second or more: mend the driver"
            )
        return sec * 1_000_000_000 + nanosec

    def number(self, kind: str, field: str) -> int:
        size = struct.calcsize(self._order + kind)
        self._at += -self._at % size
        return struct.unpack(self._order + kind, self._block(size, field))[0]

    def text(self, field: str) -> str:
        raw = bytes(self._block(self.number("I", field), field))
        if raw and raw[-1] != 0:
            raise ValueError(f"{self._what} {field} has no end: the message is damaged")
        return raw[:-1].decode("utf-8", errors="replace")

    def bytes(self, field: str) -> np.ndarray:
        return np.frombuffer(self._block(self.number("I", field), field), dtype=np.uint8)

    def _block(self, size: int, field: str) -> memoryview:
        if self._at + size > len(self._body):
            raise ValueError(
                f"{self._what} message ends in {field}: it has {len(self._body) + _HEADER} bytes, this needs "
                f"{self._at + size + _HEADER}; it was cut short or is no sensor_msgs/{self._kind}"
            )
        self._at += size
        return self._body[self._at - size : self._at]
