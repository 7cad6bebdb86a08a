"""A camera's picture as the network gets it: through the same JPEG, turn, crop and resize as in inference.

The session says how the network's family resizes (PixelRule.described), so neither the checkpoint nor a GPU
is needed. The resize is that of the captured stages, bit for bit; on a CPU, openpi's own differs from it by
at most one level of 255.
"""

from __future__ import annotations

import base64

import cv2
import numpy as np
import torch

from vla_accel_ros.contract.parts import Camera
from vla_accel_ros.engine.session import JPEG, PIXELS, Session
from vla_accel_ros.kernels.reference.image import Views, rounded, stretched
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.tools.replay.moments import network_view

JPEG_QUALITY = (cv2.IMWRITE_JPEG_QUALITY, 95)
SHOWN = 240
"""Least rows and columns of a camera's picture on the page."""


class NetworkPictures:
    """Makes pictures for a session. size: their side, 0 if the session does not say it (one of an older
    version): pictures are then as the camera's, turned and cropped."""

    def __init__(self, session: Session) -> None:
        settings = session.by_name()
        self._jpeg_quality: int | None = settings.get(JPEG)
        described = dict(settings.get(PIXELS, {}))
        self.size = int(described.pop("size", 0))
        if self.size:
            self._views = Views(PixelRule.shown(**described), self.size, 1, torch.device("cpu"))

    def of(self, camera: Camera, pixels: np.ndarray) -> np.ndarray:
        """Return uint8 [S, S, 3], RGB, from a camera's picture uint8 [H, W, 3]."""
        view = np.ascontiguousarray(network_view(camera, pixels, self._jpeg_quality))
        if not self.size:
            return view
        placed = self._views.view(torch.from_numpy(view))
        if self._views.rule.rounds:
            return rounded(placed).numpy()
        unit = stretched(placed, placed.pixels / 255.0, self._views.rule.border)
        return ((unit + 1.0) * 127.5).round_().clamp_(0.0, 255.0).permute(1, 2, 0).to(torch.uint8).numpy()


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
