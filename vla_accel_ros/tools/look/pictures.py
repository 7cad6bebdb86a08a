"""A camera's picture as the network gets it: through the same JPEG, turn, crop and resize as in inference.

The session says how the network's family resizes (PixelRule.described), so neither the checkpoint nor a GPU
is needed. The resize is that of the captured stages, bit for bit; on a CPU, openpi's own differs from it by
at most one level of 255. It is done where the robot's processor may be busy, so by Pillow where the stages
do as Pillow does, else only for the pixels that are read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import cv2
import numpy as np
from PIL import Image

from vla_accel_ros.contract.parts import Camera
from vla_accel_ros.engine.session import JPEG, PIXELS, Session
from vla_accel_ros.models.processing.pixels import Axis, PixelRule
from vla_accel_ros.tools.replay.moments import network_view

JPEG_QUALITY = (cv2.IMWRITE_JPEG_QUALITY, 95)
SHOWN = 240
"""Least rows and columns of a camera's picture on the page."""
FILTERS = {"bilinear": 2, "bicubic": 3}
"""Image.Resampling of Pillow, which Humble's does not have by that name."""


class NetworkPictures:
    """Makes pictures for a session. size: their side, 0 if the session does not say it (one of an older
    version): pictures are then as the camera's, turned and cropped."""

    def __init__(self, session: Session) -> None:
        settings = session.by_name()
        self._jpeg_quality: int | None = settings.get(JPEG)
        described = dict(settings.get(PIXELS, {}))
        self.size = int(described.pop("size", 0))
        if self.size:
            self._rule = PixelRule.shown(**described)

    def of(self, camera: Camera, pixels: np.ndarray) -> np.ndarray:
        """Return uint8 [S, S, 3], RGB, from a camera's picture uint8 [H, W, 3]."""
        view = np.ascontiguousarray(network_view(camera, pixels, self._jpeg_quality))
        if not self.size:
            return view
        return self._rounded(view) if self._rule.rounds else self._stretched(view)

    def _rounded(self, view: np.ndarray) -> np.ndarray:
        (height, width), (top, left) = self._rule.placed(view.shape[0], view.shape[1], self.size)
        picture = Image.fromarray(view)
        # In two calls: from Pillow 13 on one takes the columns of a tall image first.
        for rows in (view.shape[0], height):
            picture = picture.resize((width, rows), FILTERS[self._rule.filter])
        square = np.zeros((self.size, self.size, 3), np.uint8)
        square[top : top + height, left : left + width] = np.asarray(picture)
        return square

    def _stretched(self, view: np.ndarray) -> np.ndarray:
        rows, columns = self._rule.axes(view.shape[0], view.shape[1], self.size)
        total = np.zeros((self.size, 3 * self.size), np.float32)
        for row, row_weight in _taps(rows, view.shape[0]):
            lines, across = view.take(row, 0), np.zeros_like(total)
            for column, weight in _taps(columns, view.shape[1]):
                levels = np.divide(lines.take(column, 1), 255.0, dtype=np.float32)
                across += levels.reshape(total.shape) * weight.repeat(3)
            total += across * row_weight[:, None]
        unit = (total.clip(0.0, 1.0) * 2.0 - 1.0).reshape(self.size, self.size, 3)
        beside = ~(rows.weight.any(0)[:, None] & columns.weight.any(0)).numpy()
        unit[beside] = self._rule.border
        return ((unit + 1.0) * 127.5).round().clip(0.0, 255.0).astype(np.uint8)


def _taps(axis: Axis, pixels: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The input pixels [S] of an axis, and their weights float32 [S], one tap after another."""
    for tap, weight in enumerate(axis.weight.numpy()):
        yield np.minimum(axis.first.numpy() + tap, pixels - 1), weight


def smaller(pixels: np.ndarray) -> np.ndarray:
    """Return a camera's picture with pixels left out, as small as it is shown."""
    step = max(min(pixels.shape[:2]) // SHOWN, 1)
    return np.ascontiguousarray(pixels[::step, ::step])


def data_url(pixels: np.ndarray, exact: bool) -> str:
    """Return uint8 [H, W, 3], RGB, for an <img>: as PNG if `exact`, else as JPEG, which takes a twentieth of
    the time."""
    kind, option = ("png", (cv2.IMWRITE_PNG_COMPRESSION, 1)) if exact else ("jpeg", JPEG_QUALITY)
    data = cv2.imencode(f".{kind}", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), option)[1]
    return f"data:image/{kind};base64,{base64.b64encode(data.tobytes()).decode()}"
