"""A robot's observations, encoded for a fleet.

A JPEG or PNG from a camera is sent unchanged: only its header is read, and it is not decoded or encoded
again. Other images are sent as pixels, or as JPEG if configured, which costs a few milliseconds and changes
the pixels slightly.
"""

from __future__ import annotations

from collections import deque

import cv2
import numpy as np

from vla_accel_ros.contract.contract import Camera, Contract
from vla_accel_ros.fleet.protocol import EncodedObservation
from vla_accel_ros.sensing.arrivals import IMAGE_HINT
from vla_accel_ros.sensing.cameras.compressed import Header, check_picture
from vla_accel_ros.sensing.cameras.frames import Frame
from vla_accel_ros.sensing.cameras.image import compressed_view
from vla_accel_ros.sensing.ingest import Ingest

_KEPT = 8
"""Compressed images kept for each camera; more than the slots that an observation can come from."""


class EncodedIngest(Ingest):
    """An Ingest without a GPU, whose observations are sent to a fleet.

    jpeg_quality: 1 to 100, for images that arrive as pixels; None sends pixels. See Ingest for the rest.
    """

    def __init__(
        self, contract: Contract, image_hint: str = IMAGE_HINT, jpeg_quality: int | None = None
    ) -> None:
        compressed = [camera.name for camera in contract.cameras if camera.transport == "compressed"]
        self._pictures: dict[str, deque[tuple[int, bytes, Header]]] = {
            name: deque(maxlen=_KEPT) for name in compressed
        }
        self._jpeg_quality = jpeg_quality
        super().__init__(contract, image_hint, page_lock=False)

    def compressed(self, camera: str, message: bytes, now_ns: int) -> None:
        """Take a serialized sensor_msgs/CompressedImage, JPEG or PNG. Raises ValueError, with one sentence,
        if its header shows that it cannot be used."""
        with self._refusing(camera, now_ns):
            view = compressed_view(message)
            header = check_picture(view, self._most_pixels[camera])
            self._pictures[camera].append((view.stamp_ns, view.data.tobytes(), header))
            with self._pool.write(camera, view.stamp_ns, 1, 1):
                pass  # the synchroniser needs only its time
        self._came(camera, view.stamp_ns, now_ns)

    def encoded(self, now_ns: int, words: str | None = None) -> EncodedObservation | None:
        """Return the newest observation; None if there is no new one, and `waiting_for` says why. words:
        replaces the instruction, for a question."""
        observation = self.observe(now_ns, words)
        if observation is None:
            return None
        images: dict[str, bytes | np.ndarray] = {}
        stamps_ns: dict[str, int] = {}
        try:
            for camera in self._contract.cameras:
                stamp_ns = stamps_ns[camera.name] = observation.stamps_ns[camera.image]
                picture = self._picture(camera.name, stamp_ns)
                pixels = observation.images[camera.image]
                images[camera.name] = self._encoded(pixels) if picture is None else picture[1]
            if not observation.intact():
                self.waiting_for = "images were overwritten while they were taken: give the rings more slots"
                return None
        finally:
            self.observed()
        return EncodedObservation(
            images, stamps_ns, observation.state, observation.instruction, observation.stamp_ns
        )

    def _view(self, camera: Camera, picture: np.ndarray) -> np.ndarray:
        """The whole picture: the scheduler, which has the contract, crops and turns it."""
        return picture

    def _encoded(self, pixels: np.ndarray) -> bytes | np.ndarray:
        if self._jpeg_quality is None:
            return pixels.copy()
        return jpeg_of(pixels, self._jpeg_quality)

    def _picture(self, camera: str, stamp_ns: int) -> tuple[int, bytes, Header] | None:
        matches = [picture for picture in self._pictures.get(camera, ()) if picture[0] == stamp_ns]
        return matches[-1] if matches else None

    def _pixels(self, frame: Frame) -> np.ndarray | None:
        picture = self._picture(frame.camera, frame.stamp_ns)
        if picture is None:
            return super()._pixels(frame)
        pixels = cv2.imdecode(np.frombuffer(picture[1], np.uint8), cv2.IMREAD_REDUCED_COLOR_4)
        return None if pixels is None else np.asarray(pixels)[..., ::-1]

    def _size(self, frame: Frame) -> tuple[int, ...]:
        picture = self._picture(frame.camera, frame.stamp_ns)
        return super()._size(frame) if picture is None else (picture[2].height, picture[2].width)


def jpeg_of(pixels: np.ndarray, quality: int) -> bytes:
    """Encode uint8 [H, W, 3], RGB, as JPEG of a quality of 1 to 100. Deterministic for one version of
    OpenCV."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, (cv2.IMWRITE_JPEG_QUALITY, quality))
    return data.tobytes()
