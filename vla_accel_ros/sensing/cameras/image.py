"""Reads image messages in place, and writes any 8-bit colour image once, as RGB, into its slot.

rclpy would copy the pixels into a Python object for every frame. A raw subscription hands over the bytes as
they came, and only the position of the pixels must be found. The layout is plain CDR (XCDR1): four bytes that
name the endianness, then the fields in order, each number aligned to its size (counted from after those four
bytes), each string with its length and a final NUL. The bytes come from the network, so every error in them
raises ValueError.

Rows are read in the message with their step and padding, and OpenCV converts them straight into the given
slot: no intermediate picture, and the GIL is free meanwhile. ROS and OpenCV name Bayer patterns differently
(ROS by the first two pixels of the first row, OpenCV by those of the second row from the second column),
hence the table. Encodings without a colour order are read as cv_bridge does: 8UC3 is bgr8, 8UC4 is bgra8,
8UC1 is mono8.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import cv2
import numpy as np

_ORDERS = {b"\x00\x00": ">", b"\x00\x01": "<"}
_HEADER = 4
_LITTLE = b"\x00\x01\x00\x00"
_RGB8 = b"rgb8\0"


@dataclass(frozen=True)
class ImageView:
    """The fields of a sensor_msgs/Image; `data` is a view of the message's bytes and must not outlive them.

    stamp_ns: capture time, nanoseconds of the ROS clock. step: bytes from one row to the next. data: uint8
    [N], not copied.
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
    """The fields of a sensor_msgs/CompressedImage, see ImageView. format: as the sender declares it."""

    stamp_ns: int
    frame_id: str
    format: str
    data: np.ndarray


def image_view(buffer: bytes | bytearray | memoryview) -> ImageView:
    """Parse a serialized sensor_msgs/Image without copying its pixels.

    Raises ValueError if the bytes are not such a message: truncated, not plain CDR, a string without its end,
    or an invalid time.
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
    """Parse a serialized sensor_msgs/CompressedImage without copying its data. Raises as image_view does."""
    reader = _Reader(buffer, "compressed image", "CompressedImage")
    return CompressedView(
        stamp_ns=reader.stamp_ns(),
        frame_id=reader.text("header.frame_id"),
        format=reader.text("format"),
        data=reader.bytes("data"),
    )


def image_message(stamp_ns: int, frame_id: str, image: np.ndarray) -> bytearray:
    """A serialized sensor_msgs/Image, rgb8, from uint8 [H, W, 3]; the pixels are copied once."""
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
    """A cursor in a message. what: the message's name in errors; kind: its type in sensor_msgs."""

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
                f"{self._what} header.stamp.nanosec is {nanosec}, a second or more: fix the driver"
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


@dataclass(frozen=True)
class _Layout:
    """code: OpenCV's conversion to RGB. channels: bytes per pixel. rows: rows of data per two image rows."""

    code: int | None
    channels: int
    rows: int = 2


_LAYOUTS = {
    "rgb8": _Layout(None, 3),
    "bgr8": _Layout(cv2.COLOR_BGR2RGB, 3),
    "8UC3": _Layout(cv2.COLOR_BGR2RGB, 3),
    "rgba8": _Layout(cv2.COLOR_RGBA2RGB, 4),
    "bgra8": _Layout(cv2.COLOR_BGRA2RGB, 4),
    "8UC4": _Layout(cv2.COLOR_BGRA2RGB, 4),
    "mono8": _Layout(cv2.COLOR_GRAY2RGB, 1),
    "8UC1": _Layout(cv2.COLOR_GRAY2RGB, 1),
    "uyvy": _Layout(cv2.COLOR_YUV2RGB_UYVY, 2),
    "yuv422": _Layout(cv2.COLOR_YUV2RGB_UYVY, 2),
    "yuyv": _Layout(cv2.COLOR_YUV2RGB_YUY2, 2),
    "yuv422_yuy2": _Layout(cv2.COLOR_YUV2RGB_YUY2, 2),
    "nv12": _Layout(cv2.COLOR_YUV2RGB_NV12, 1, rows=3),
    "nv21": _Layout(cv2.COLOR_YUV2RGB_NV21, 1, rows=3),
    "bayer_rggb8": _Layout(cv2.COLOR_BayerBG2RGB, 1),
    "bayer_bggr8": _Layout(cv2.COLOR_BayerRG2RGB, 1),
    "bayer_gbrg8": _Layout(cv2.COLOR_BayerGR2RGB, 1),
    "bayer_grbg8": _Layout(cv2.COLOR_BayerGB2RGB, 1),
}
ENCODINGS = tuple(_LAYOUTS)


def check(image: ImageView) -> None:
    """Raises the errors of `write_rgb` before memory is allocated: a header may claim any size, and be wrong.

    Raises ValueError, one sentence, if the encoding is not 8-bit colour, the image has no pixels, the rows
    are shorter than the width, or the data is shorter than the rows.
    """
    _source(image)


def write_rgb(image: ImageView, out: np.ndarray) -> None:
    """Write the image as RGB into `out`, uint8 [height, width, 3], contiguous.

    Raises ValueError as `check` does, and if `out` has another size.
    """
    layout, source = _source(image)
    height, width = image.height, image.width
    if out.shape != (height, width, 3) or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ValueError(
            f"image is {height} x {width}, its place is {out.dtype} {out.shape}: "
            f"make it uint8 [{height}, {width}, 3]"
        )
    if layout.code is None:
        np.copyto(out, source)
        return
    try:
        cv2.cvtColor(source, layout.code, dst=out)
    except cv2.error as error:
        raise ValueError(
            f"image of {height} x {width} {image.encoding} cannot be converted: {' '.join(error.err.split())}"
        ) from error


def _source(image: ImageView) -> tuple[_Layout, np.ndarray]:
    """The layout of the pixels, and a view of them."""
    layout = _LAYOUTS.get(image.encoding)
    if layout is None:
        raise ValueError(
            f"image encoding {image.encoding[:40]!r} is not 8-bit colour: have the driver publish one of "
            f"{', '.join(ENCODINGS)}"
        )
    if not image.height or not image.width:
        raise ValueError(f"image of {image.height} x {image.width} {image.encoding} has no pixels")
    if layout.rows == 3 or layout.channels == 2:
        _require_even(image, both=layout.rows == 3)
    return layout, _rows(image, image.height * layout.rows // 2, layout.channels)


def _rows(image: ImageView, rows: int, channels: int) -> np.ndarray:
    """The pixels as uint8 [rows, width] or [rows, width, channels], a view that skips the padding."""
    length = image.width * channels
    if image.step < length:
        raise ValueError(
            f"image step is {image.step}, less than the {length} bytes of {image.width} {image.encoding} "
            "pixels: fix the driver"
        )
    needed = (rows - 1) * image.step + length
    if len(image.data) < needed:
        raise ValueError(
            f"image has {len(image.data)} bytes of data, {rows} rows of step {image.step} need {needed}: "
            "fix the driver"
        )
    shape = (rows, image.width) if channels == 1 else (rows, image.width, channels)
    strides = (image.step, 1) if channels == 1 else (image.step, channels, 1)
    return np.lib.stride_tricks.as_strided(image.data, shape, strides, writeable=False)


def _require_even(image: ImageView, both: bool) -> None:
    if image.width % 2 or (both and image.height % 2):
        raise ValueError(
            f"image is {image.height} x {image.width}, but {image.encoding} shares colour between pixels: "
            "crop it to an even size"
        )
