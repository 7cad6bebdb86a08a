"""Turn a received observation into one that the engine takes. Images are decoded as data, never executed."""

from __future__ import annotations

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import EncodedObservation
from vla_accel_ros.sensing.cameras.image import CompressedView
from vla_accel_ros.types import Observation


def decoded(encoded: EncodedObservation, contract: Contract, robot: str) -> Observation:
    """Return the observation with RGB images under the policy's image names.

    Raises ValueError, with one sentence, if a camera, or a part of the history, is missing or is not in the
    contract, an image cannot be decoded, or the state is not one finite number for each joint.
    """
    cameras = {picture.name: picture for picture in contract.pictures}
    if encoded.images.keys() not in (cameras.keys(), {camera.name for camera in contract.cameras}):
        raise ValueError(
            f"there are images of {sorted(encoded.images)}, the contract's cameras are {sorted(cameras)}; "
            "send one of each"
        )
    images, stamps_ns = {}, {}
    for name, image in encoded.images.items():
        camera = cameras[name]
        images[camera.image] = camera.view(pixels_of(name, image, camera.max_pixels))
        stamps_ns[camera.image] = encoded.stamps_ns.get(name, encoded.stamp_ns)
    state = np.asarray(encoded.state, np.float32)
    if state.shape != (len(contract.state_names),) or not np.isfinite(state).all():
        raise ValueError(f"the state is {state}; give a finite number for each of {contract.state_names}")
    words, stamp_ns = encoded.instruction, encoded.stamp_ns
    return Observation(images, state, words, stamp_ns, stamps_ns=stamps_ns, robot=robot)


def pixels_of(name: str, image: bytes | np.ndarray, most_pixels: int) -> np.ndarray:
    """Return a received image as uint8 [H, W, 3], RGB. Raises ValueError if it is not an image."""
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"the image of {name} is {image.dtype} {image.shape}; send uint8 [H, W, 3]")
        return image
    from vla_accel_ros.sensing.cameras.compressed import decode, write_bgr  # imports OpenCV

    picture = decode(CompressedView(0, name, "", np.frombuffer(image, np.uint8)), most_pixels)
    pixels = np.empty_like(picture)
    write_bgr(picture, pixels)
    return pixels
