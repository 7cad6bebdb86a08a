"""Pictures of OpenVLA-OFT are what libjpeg and TensorFlow's formulas make of them, at every size."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from vla_accel_ros.models.openvla_oft.jpeg import through_jpeg
from vla_accel_ros.models.openvla_oft.pictures import crop, prepared, resize_lanczos

DECODED = {
    (480, 640): (3201788417, 50673882, 1518697137),
    (64, 80): (240856388, 2148586031, 1393028694),
    (51, 71): (405835676, 3742013700, 1689420697),
    (97, 8): (50461298, 2878567728, 2350988061),
    (5, 7): (1758233702, 1586330925, 639938673),
}
"""Checksums of each kind of picture, encoded by Pillow 13.0.0 (libjpeg-turbo 3.2.0, quality 95, 4:2:0) and
decoded by libjpeg-turbo 2.1.5 with TJFLAG_FASTDCT, as TensorFlow decodes."""
SIZES = [(64, 80), (50, 70), (33, 47), (17, 19), (97, 8), (30, 112), (200, 31)]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def black_and_white(height: int, width: int) -> np.ndarray:
    return (noise(height, width) > 127).astype(np.uint8) * 255


def ramps(height: int, width: int) -> np.ndarray:
    return (np.indices((height, width)).sum(0)[..., None] * np.array([1, 2, 3]) % 256).astype(np.uint8)


KINDS: tuple[Callable[[int, int], np.ndarray], ...] = (noise, black_and_white, ramps)


def planes_of(image: np.ndarray, device: str = "cpu") -> Tensor:
    return torch.from_numpy(image).to(device).permute(2, 0, 1)[None].double()


def levels_of(planes: Tensor) -> np.ndarray:
    """uint8 [H, W, 3]; nothing is rounded."""
    levels = planes[0].permute(1, 2, 0).byte()
    assert torch.equal(levels.double(), planes[0].permute(1, 2, 0))
    return levels.cpu().numpy()


def resampled(image: np.ndarray, taps: Callable[[int, int], dict[int, float]], size: int) -> np.ndarray:
    """float64 [size, size, 3]; taps: weights of the pixels of a line for its pixel of that number."""
    for axis in (0, 1):
        lines = np.moveaxis(image.astype(np.float64), axis, 0)
        out = [sum(w * lines[k] for k, w in taps(len(lines), i).items()) for i in range(size)]
        image = np.moveaxis(np.array(out), 0, axis)
    return image


def lanczos3(before: int, index: int, size: int) -> dict[int, float]:
    """TensorFlow's ScaleAndTranslate with antialiasing, half-pixel centres."""
    scale = before / size
    stretch, centre = max(scale, 1.0), (index + 0.5) * scale
    weights = {}
    for pixel in range(before):
        x = abs(pixel + 0.5 - centre) / stretch
        if x < 3.0:
            weights[pixel] = float(np.sinc(x) * np.sinc(x / 3.0))
    total = sum(weights.values())
    return {pixel: weight / total for pixel, weight in weights.items()}


def middle(size: int, index: int) -> dict[int, float]:
    """crop_and_resize of the box of nine tenths of the area."""
    low = (1.0 - 0.9**0.5) / 2.0
    point = low * (size - 1) + index * 0.9**0.5
    first = int(point)
    return {first: first + 1 - point, first + 1: point - first}


@pytest.mark.parametrize("size", DECODED, ids=str)
def test_jpegs_are_those_of_libjpeg(device: str, size: tuple[int, int]) -> None:
    for kind, expected in zip(KINDS, DECODED[size], strict=True):
        ours = levels_of(through_jpeg(planes_of(kind(*size), device)))
        assert zlib.crc32(ours.tobytes()) == expected, kind.__name__


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("side", [28, 56])
def test_resize_and_crop_are_tensorflows(device: str, size: tuple[int, int], side: int) -> None:
    for kind in KINDS:
        image = kind(*size)
        resized = resampled(image, lambda before, index: lanczos3(before, index, side), side)
        expected = np.clip(np.rint(resized), 0, 255).astype(np.uint8)
        ours = resize_lanczos(planes_of(image, device), side)
        np.testing.assert_array_equal(levels_of(ours), expected)
        unit = resampled(expected, middle, side) / 255.0
        np.testing.assert_array_equal(levels_of(crop(ours)), np.clip(unit * 255.5, 0, 255).astype(np.uint8))


def test_pictures_of_several_sizes_are_each_what_they_are_alone(device: str) -> None:
    """One has the network's size, and went through no JPEG in training."""
    sizes = [(64, 80), (56, 56), (50, 70), (64, 80)]
    images = [torch.from_numpy(np.roll(noise(*size), n, 0)).to(device) for n, size in enumerate(sizes)]
    together = prepared(images, 56)
    for image, picture in zip(images, together, strict=True):
        assert torch.equal(picture, prepared([image], 56)[0])
    assert torch.equal(together[1], crop(images[1].permute(2, 0, 1)[None].double())[0])
    assert len({picture.cpu().numpy().tobytes() for picture in together}) == len(sizes)
