"""Any 8-bit colour image as RGB, written once into the place where it is wanted.

The rows are read in the message through their step, padding and all, and OpenCV converts them straight into
the given slot: no intermediate picture, and the GIL is free meanwhile. What ROS and OpenCV call a Bayer
pattern differs (ROS names the first two pixels of the first row, OpenCV those of the second row from the
second column), hence the table. Encodings without a colour order are read as cv_bridge does: 8UC3 is bgr8,
8UC4 is bgra8, 8UC1 is mono8.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from vla_accel_ros.sensing.cameras.cdr import ImageView


@dataclass(frozen=True)
class _Layout:
    """code: OpenCV's conversion to RGB. channels: bytes a pixel. rows: rows of data per two image rows."""

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
    """Refuse what `write_rgb` would, before there is a place: a header may claim any size, and be wrong.

    Raises ValueError, one sentence, for an encoding that is not 8-bit colour, for an image without pixels,
    for rows that are shorter than the width, and for data that is shorter than the rows.
    """
    _source(image)


def write_rgb(image: ImageView, out: np.ndarray) -> None:
    """Write the image as RGB into `out`, uint8 [height, width, 3], contiguous.

    Raises ValueError as `check` does, and for an `out` of another size.
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
            f"image of {height} x {width} {image.encoding} is no picture: {' '.join(error.err.split())}"
        ) from error


def _source(image: ImageView) -> tuple[_Layout, np.ndarray]:
    """How the pixels lie, and a view of them."""
    layout = _LAYOUTS.get(image.encoding)
    if layout is None:
        raise ValueError(
            f"image encoding {image.encoding[:40]!r} is not 8-bit colour: have the driver publish one of "
            f"{', '.join(ENCODINGS)}"
        )
    if not image.height or not image.width:
        raise ValueError(f"image of {image.height} x {image.width} {image.encoding} is no picture")
    if layout.rows == 3 or layout.channels == 2:
        _require_even(image, both=layout.rows == 3)
    return layout, _rows(image, image.height * layout.rows // 2, layout.channels)


def _rows(image: ImageView, rows: int, channels: int) -> np.ndarray:
    """The pixels as uint8 [rows, width] or [rows, width, channels], a view over the padding."""
    length = image.width * channels
    if image.step < length:
        raise ValueError(
            f"image step is {image.step}, less than the {length} bytes of {image.width} {image.encoding} "
            "pixels: mend the driver"
        )
    needed = (rows - 1) * image.step + length
    if len(image.data) < needed:
        raise ValueError(
            f"image has {len(image.data)} bytes of data, {rows} rows of step {image.step} need {needed}: "
            "mend the driver"
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
