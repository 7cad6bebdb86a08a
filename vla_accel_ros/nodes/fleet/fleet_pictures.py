"""The pictures of a FleetRequest, both ways: as bytes of JPEG or PNG, or as pixels."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from sensor_msgs.msg import CompressedImage, Image

from vla_accel_msgs.msg import FleetRequest
from vla_accel_ros.contract.parts import Camera
from vla_accel_ros.nodes.messages.convert import stamp_ns
from vla_accel_ros.sensing.cameras.compressed import check_picture
from vla_accel_ros.sensing.cameras.image import CompressedView, ImageView, check, write_rgb


def pictures(message: FleetRequest) -> Iterator[tuple[str, Image | CompressedImage]]:
    """Each picture with its camera's name."""
    for picture in (*message.compressed, *message.raw):
        yield picture.header.frame_id, picture


def picture_from_message(picture: Image | CompressedImage, camera: Camera) -> bytes | np.ndarray:
    """A picture as in an EncodedObservation: bytes, or uint8 [H, W, 3], RGB. Raises ValueError if it is
    invalid or has more pixels than the contract allows its camera."""
    data = np.frombuffer(picture.data, dtype=np.uint8)
    at_ns, name = stamp_ns(picture.header.stamp), picture.header.frame_id
    if isinstance(picture, CompressedImage):
        check_picture(CompressedView(at_ns, name, picture.format, data), camera.max_pixels)
        return data.tobytes()
    if picture.height * picture.width > camera.max_pixels:
        raise ValueError(
            f"image is {picture.height} x {picture.width}, more than the {camera.max_pixels} pixels that the "
            "contract allows"
        )
    size = picture.height, picture.width
    view = ImageView(*(at_ns, name, *size, picture.encoding), bool(picture.is_bigendian), picture.step, data)
    check(view)
    pixels = np.empty((*size, 3), np.uint8)
    write_rgb(view, pixels)
    return pixels


def picture_to_message(image: bytes | np.ndarray) -> Image | CompressedImage:
    """A picture of an EncodedObservation as a message; pixels as rgb8."""
    if isinstance(image, bytes):
        kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
        return CompressedImage(format=kind, data=array("B", image))
    height, width = image.shape[:2]
    pixels = array("B", np.ascontiguousarray(image).tobytes())
    return Image(height=height, width=width, encoding="rgb8", step=3 * width, data=pixels)
