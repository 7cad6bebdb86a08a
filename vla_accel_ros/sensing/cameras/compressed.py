"""Decodes a compressed picture once, and writes it as RGB once into its place.

OpenCV decodes. The bytes come from the network, so the header is checked first for what OpenCV would do
silently: 16-bit PNG would lose half its bits, a truncated JPEG would be filled with grey, a header that
claims more pixels than its bytes can hold would get the memory, and each of ten thousand scans would go over
all pixels. PNG has checksums, so a damaged one is always refused; in a JPEG only broken structure is
detected. The pixels are taken as stored, as cv_bridge does: without EXIF rotation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import cv2
import numpy as np

from vla_accel_ros.sensing.cameras.image import CompressedView

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG, _END = b"\xff\xd8", b"\xff\xd9"
_FILL = re.compile(b"\xff+")
MOST_PIXELS = 7680 * 4320
"""An 8K camera's; a caller that knows the camera gives less. OpenCV takes 6 bytes a pixel, 193 MB for
this."""
_MOST_SCANS = 32
"""Limit for a JPEG. Progressive ones have 10; each scan goes over all pixels, 30 ms at 8K even for 12
bytes."""
_MOST_MARKERS = 1024
"""Limit for those before the frame header; a large colour profile is 255 of them."""
_FEW_PIXELS = 1 << 20
"""Pictures of up to this size are decoded whatever their file's size: 6 MB."""
_PIXELS_A_BYTE = {"jpeg": 512, "png": 8256}
"""Upper bounds: 8 x 8 pixels of a JPEG take at least a bit, and deflate makes at most 1032 bytes from one,
with 8 pixels in each."""
_JPEG_KINDS = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive"}
_COMPONENTS = (1, 3, 4)
_SCAN = b"\xff\xda"
_STANDALONE = (0x01, *range(0xD0, 0xD8))
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # between C0 and CF, but not frame headers
_READ = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
_READ_SMALL = cv2.IMREAD_REDUCED_COLOR_8 | cv2.IMREAD_IGNORE_ORIENTATION


@dataclass(frozen=True)
class Header:
    """What a picture's header says. bits: per sample. scans: how often its data go over the pixels."""

    kind: str
    height: int
    width: int
    bits: int
    scans: int = 1


def decode(view: CompressedView, most_pixels: int = MOST_PIXELS) -> np.ndarray:
    """Decode to OpenCV's format, uint8 [height, width, 3], BGR; `write_bgr` converts it into its place.

    most_pixels: what its camera can send. Raises ValueError, one sentence, if it is neither JPEG nor PNG, not
    8-bit, damaged or too large; bad headers are refused before anything is decoded.
    """
    return _decoded(view, check_picture(view, most_pixels), _READ)


def check_decodes(view: CompressedView, most_pixels: int = MOST_PIXELS) -> None:
    """Raises ValueError as `decode` does; of a JPEG only an eighth of the rows and columns are computed."""
    _decoded(view, check_picture(view, most_pixels), _READ_SMALL, 8)


def _decoded(view: CompressedView, header: Header, how: int, of: int = 1) -> np.ndarray:
    """Decode one of so many rows and columns. Raises ValueError if the picture is damaged."""
    size = f"{header.height} x {header.width}"
    try:
        picture = cv2.imdecode(view.data, how)
    except cv2.error as error:
        raise ValueError(f"compressed image of {size} is damaged: {error.err}") from error
    if picture is None or picture.shape != (-(-header.height // of), -(-header.width // of), 3):
        raise ValueError(f"compressed image of {size} is damaged: the {header.kind} does not decode")
    return picture


def check_picture(view: CompressedView, most_pixels: int = MOST_PIXELS) -> Header:
    """The header of a picture that may be decoded. Raises ValueError as `decode` does, except for damage that
    the header does not show."""
    header = read_header(view)
    if header.bits > 8:
        raise ValueError(
            f"compressed image is a {header.bits}-bit {header.kind}, not 8-bit colour: have the driver "
            "publish 8-bit jpeg or png"
        )
    _check_size(header, len(view.data), most_pixels)
    return header


def _check_size(header: Header, file_bytes: int, most_pixels: int) -> None:
    """Raises ValueError for a picture whose size must not be allocated."""
    size, pixels = f"{header.height} x {header.width}", header.height * header.width
    if not 0 < pixels <= most_pixels:
        raise ValueError(
            f"compressed image declares {size}: at most {most_pixels} pixels are decoded; if the camera "
            "sends so many, raise its max_pixels in the contract"
        )
    if pixels > max(_FEW_PIXELS, _PIXELS_A_BYTE[header.kind] * file_bytes):
        raise ValueError(
            f"compressed image declares {size}, which no {header.kind} of {file_bytes} bytes can hold: it "
            "is damaged or malicious"
        )
    if header.scans > _MOST_SCANS:
        raise ValueError(
            f"compressed image of {size} has {header.scans} scans, at most {_MOST_SCANS} are decoded: have "
            "the driver publish baseline jpeg"
        )


def write_bgr(picture: np.ndarray, out: np.ndarray) -> None:
    """Write OpenCV's picture, uint8 [height, width, 3], BGR, as RGB into `out` of the same size."""
    cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=out)


def read_header(view: CompressedView) -> Header:
    """Identify the picture by its first bytes, not by `format`. Raises ValueError, one sentence."""
    head = view.data[:33].tobytes()
    if head.startswith(_PNG) and len(head) == 33 and head[12:16] == b"IHDR":
        width, height = (int.from_bytes(head[offset : offset + 4], "big") for offset in (16, 20))
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
    """Whether the last bytes, without padding by 00 or FF, are the end marker of a JPEG."""
    tail = data[-2:].tobytes()
    if tail != _END:
        used = np.flatnonzero((data != 0x00) & (data != 0xFF))
        tail = data[used[-1] - 1 : used[-1] + 1].tobytes()
    return tail == _END


def _jpeg_header(data: np.ndarray) -> Header:
    """Go from marker to marker to the frame header (ITU-T T.81, B.2.2). Raises ValueError if there is none
    behind _MOST_MARKERS others."""
    raw, offset = data.tobytes(), len(_JPEG)
    for _ in range(_MOST_MARKERS):
        fill = _FILL.match(raw, offset)  # any number of FF before the marker (B.1.1.2)
        if fill is None or fill.end() + 8 >= len(raw):
            break
        offset = fill.end() - 1
        marker, length = raw[offset + 1], int.from_bytes(raw[offset + 2 : offset + 4], "big")
        if marker in _STANDALONE:
            offset += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            bits, h1, h0, w1, w0, components = raw[offset + 4 : offset + 10]
            if marker not in _JPEG_KINDS or components not in _COMPONENTS:
                raise ValueError(
                    f"compressed image is a jpeg of kind {marker:02X} with {components} components, which no "
                    "camera sends: have the driver publish baseline jpeg"
                )
            # In coded data FF is never followed by DA, so this finds every scan; those of a thumbnail count
            # too.
            return Header("jpeg", h1 << 8 | h0, w1 << 8 | w0, bits, raw.count(_SCAN))
        else:
            offset += 2 + length
    raise ValueError(f"compressed image of {len(data)} bytes is a jpeg without a frame header: it is damaged")
