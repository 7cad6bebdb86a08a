"""A compressed picture as RGB, decoded once and written once into the place where it is wanted.

OpenCV decodes; what it would do silently is decided here first, from the picture's own header, because the
bytes come from the network: 16-bit PNG would lose half its bits, a JPEG that was cut short would be filled up
with grey, and a header that claims a gigapixel would be given the memory. PNG carries checksums, so a damaged
one is always refused; in a JPEG only broken structure can be seen. The pixels are taken as they are stored,
as cv_bridge does: no EXIF rotation.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from vla_accel_ros.sensing.cdr import CompressedView

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_MOST_PIXELS = 1 << 26
_STANDALONE = (0x01, *range(0xD0, 0xD8))
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # between the frame headers C0 to CF, but none
_READ = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


@dataclass(frozen=True)
class Header:
    """What a picture says of itself. bits: of one number."""

    kind: str
    height: int
    width: int
    bits: int


def decode(view: CompressedView) -> np.ndarray:
    """The picture as OpenCV has it, uint8 [height, width, 3], BGR; `write_bgr` puts it where it is wanted.

    Raises ValueError, one sentence, for what is neither JPEG nor PNG, is not 8-bit, is damaged or too large.
    """
    header = read_header(view)
    size = f"{header.height} x {header.width}"
    if header.bits > 8:
        raise ValueError(
            f"compressed image is a {header.bits}-bit {header.kind}, not 8-bit colour: have the driver "
            "publish 8-bit jpeg or png"
        )
    if not 0 < header.height * header.width <= _MOST_PIXELS:
        raise ValueError(f"compressed image says it is {size}: at most {_MOST_PIXELS} pixels are decoded")
    try:
        picture = cv2.imdecode(view.data, _READ)
    except cv2.error as error:
        raise ValueError(f"compressed image of {size} is damaged: {error.err}") from error
    if picture is None or picture.shape != (header.height, header.width, 3):
        raise ValueError(f"compressed image of {size} is damaged: the {header.kind} does not decode")
    return picture


def write_bgr(picture: np.ndarray, out: np.ndarray) -> None:
    """Write a picture as OpenCV has it, uint8 [height, width, 3], BGR, as RGB into `out` of the same size."""
    cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=out)


def read_header(view: CompressedView) -> Header:
    """What the picture is, by its own first bytes and not by `format`. Raises ValueError, one sentence."""
    head = view.data[:33].tobytes()
    if head.startswith(_PNG) and len(head) == 33 and head[12:16] == b"IHDR":
        width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
        return Header("png", height, width, head[24])
    if head.startswith(_JPEG):
        if not _has_end(view.data):
            raise ValueError(
                f"compressed image of {len(view.data)} bytes is a jpeg without its end: it was cut short"
            )
        return _jpeg_header(view.data)
    raise ValueError(
        f"compressed image of format {view.format[:40]!r} begins with {head[:8]!r}, which is neither jpeg "
        "nor png: have the driver publish one of these"
    )


def _has_end(data: np.ndarray) -> bool:
    """Whether the last bytes, padding aside, end a JPEG."""
    tail = data[-2:]
    if tail[-1] == 0:
        used = np.flatnonzero(data)
        tail = data[used[-1] - 1 : used[-1] + 1]
    return tail.tobytes() == b"\xff\xd9"


def _jpeg_header(data: np.ndarray) -> Header:
    """Go from marker to marker to the frame header (ITU-T T.81, B.2.2)."""
    at = len(_JPEG)
    while at + 9 < len(data) and data[at] == 0xFF:
        marker, length = int(data[at + 1]), (int(data[at + 2]) << 8) + int(data[at + 3])
        if marker == 0xFF:  # a marker may be filled up with these
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            bits, h1, h0, w1, w0 = (int(byte) for byte in data[at + 4 : at + 9])
            return Header("jpeg", h1 << 8 | h0, w1 << 8 | w0, bits)
        else:
            at += 2 + length
    raise ValueError(f"compressed image of {len(data)} bytes is a jpeg without a frame header: it is damaged")
