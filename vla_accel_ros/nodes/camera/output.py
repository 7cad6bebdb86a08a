"""Publishes a camera's frames: as handles into the ring, and as images for nodes that cannot read the ring.

The frame is written once, into the ring or, without one, into the Image message itself. Image and
CompressedImage, for viewers and bags, have their own rates and are sent only while someone subscribes.
CameraInfo goes with them, or once a second if there are none. If a camera changes its size, or another
process truncates the ring, a new ring is made.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from vla_accel_msgs.msg import FrameHandle
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.cameras.ring import RingWriter, ring_name

_INFO_HZ = 1.0


@dataclass(frozen=True)
class Outputs:
    """What to send. ring: whether to use one; slots: their number. image_hz, jpeg_hz: rates of Image and
    CompressedImage; 0 for none, -1 for every frame. jpeg_quality: 1..100."""

    ring: bool = False
    slots: int = 4
    image_hz: float = -1.0
    jpeg_hz: float = 0.0
    jpeg_quality: int = 90


class CameraOutput:
    """Publishes the frames of one camera below camera/<name>/, from one thread.

    The topics are frame (FrameHandle), image_raw, image_raw/compressed and camera_info, each only if it is
    configured. info: the camera's calibration, None for none; its header is filled here. Raises ValueError,
    one sentence, if nothing would be sent, or if the ring cannot be made.
    """

    def __init__(self, node: Node, name: str, outputs: Outputs, info: CameraInfo | None = None) -> None:
        if not (outputs.ring or outputs.image_hz or outputs.jpeg_hz):
            raise ValueError(f"camera {name} sends nothing: set ring to true, or image_hz or jpeg_hz")
        self._outputs, self._info = outputs, info
        self._frame_id = f"{name}_camera_optical_frame"
        self._ring_name = ring_name(node.context.get_domain_id(), node.get_namespace(), name)
        self._ring: RingWriter | None = None
        self._image = Image(encoding="rgb8")
        self._image.header.frame_id = self._frame_id
        self._image_due, self._jpeg_due = Due(outputs.image_hz), Due(outputs.jpeg_hz)
        self._info_due = Due(-1.0 if outputs.image_hz or outputs.jpeg_hz else _INFO_HZ)

        def publisher(kind: type, topic: str, wanted: object) -> Any:
            return node.create_publisher(kind, f"camera/{name}/{topic}", qos.SENSOR) if wanted else None

        self._handles = publisher(FrameHandle, "frame", outputs.ring)
        self._images = publisher(Image, "image_raw", outputs.image_hz)
        self._jpegs = publisher(CompressedImage, "image_raw/compressed", outputs.jpeg_hz)
        self._infos = publisher(CameraInfo, "camera_info", info)

    @contextmanager
    def frame(self, stamp_ns: int, height: int, width: int) -> Iterator[np.ndarray]:
        """The place to write a frame to, uint8 [height, width, 3], RGB; sent when the block ends without an
        exception.

        stamp_ns: capture time. Raises ValueError, one sentence, if a ring of that size cannot be made.
        """
        if self._outputs.ring:
            ring = self._ring_of(height, width)
            with ring.slot(stamp_ns) as pixels:
                yield pixels
            assert ring.handle is not None
            self._handles.publish(convert.handle_to_message(ring.handle, self._frame_id))
        else:
            pixels = self._message_of(height, width)
            yield pixels
        self._send_images(pixels, stamp_ns)

    def close(self) -> None:
        """Remove the ring."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _ring_of(self, height: int, width: int) -> RingWriter:
        if self._ring is not None:
            size = (self._ring.geometry.height, self._ring.geometry.width)
            if size == (height, width) and self._ring.is_whole():
                return self._ring
            self.close()
        self._ring = RingWriter(self._ring_name, height, width, self._outputs.slots)
        return self._ring

    def _message_of(self, height: int, width: int) -> np.ndarray:
        """The pixels of the Image message, which is resized first if necessary."""
        image = self._image
        if (image.height, image.width) != (height, width):
            image.height, image.width, image.step = height, width, 3 * width
            image.data = array("B", bytes(3 * width * height))
        return np.frombuffer(image.data, np.uint8).reshape(height, width, 3)

    def _send_images(self, pixels: np.ndarray, stamp_ns: int) -> None:
        """Send the images that are due. pixels: the frame as written, still in its place."""
        image_due, jpeg_due = self._image_due(stamp_ns), self._jpeg_due(stamp_ns)
        if image_due and self._images.get_subscription_count():
            if self._outputs.ring:
                np.copyto(self._message_of(*pixels.shape[:2]), pixels)
            convert.set_stamp(self._image.header.stamp, stamp_ns)
            self._images.publish(self._image)
        if jpeg_due and self._jpegs.get_subscription_count():
            self._jpegs.publish(self._jpeg(pixels, stamp_ns))
        none = not (self._outputs.image_hz or self._outputs.jpeg_hz)
        if self._info is not None and (image_due or jpeg_due or (none and self._info_due(stamp_ns))):
            self._info.header.frame_id = self._frame_id
            convert.set_stamp(self._info.header.stamp, stamp_ns)
            self._infos.publish(self._info)

    def _jpeg(self, pixels: np.ndarray, stamp_ns: int) -> CompressedImage:
        settings = [cv2.IMWRITE_JPEG_QUALITY, self._outputs.jpeg_quality]
        _, coded = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), settings)
        message = CompressedImage(format="rgb8; jpeg compressed bgr8")
        message.data = array("B", coded.tobytes())
        message.header.frame_id = self._frame_id
        convert.set_stamp(message.header.stamp, stamp_ns)
        return message


class Due:
    """Whether the next frame is due at a rate, by stamps; a quarter of a period early counts, as stamps
    jitter.

    rate_hz: 0 is never, negative always.
    """

    def __init__(self, rate_hz: float) -> None:
        self._rate_hz, self._next_ns = rate_hz, 0.0

    def __call__(self, stamp_ns: int) -> bool:
        """Call it once for every frame."""
        if self._rate_hz <= 0.0:
            return self._rate_hz < 0.0
        period_ns = 1e9 / self._rate_hz
        early_ns = self._next_ns - stamp_ns
        if period_ns / 4 < early_ns <= 2 * period_ns:  # further in the future: the clock was set back
            return False
        due_ns = self._next_ns if abs(early_ns) < period_ns else stamp_ns
        self._next_ns = due_ns + period_ns
        return True
