"""Patches of an image: the twin does what the two-step processing does, the kernel what the twin does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawing import DEVICE, poison

from vla_accel_ros.kernels import image
from vla_accel_ros.kernels.gpu import image as kernels
from vla_accel_ros.models.processing import resize_with_pad

SIZES = [(14, 14), (15, 20), (20, 15), (37, 30), (5, 7), (1, 3), (40, 14)]
LEVEL = 2 / 255


def drawn(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def twin_of(pixels: np.ndarray, size: int = 14, patch: int = 7) -> torch.Tensor:
    out = poison((size // patch) ** 2, 3 * patch * patch)
    image.patches(torch.from_numpy(pixels).to(DEVICE), size, patch, out)
    return out


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_twin_is_the_processing_within_one_level(shape: tuple[int, int]) -> None:
    pixels = drawn(*shape)
    square = torch.from_numpy(resize_with_pad(pixels, 14)).to(DEVICE).float() / 127.5 - 1
    expected = square.reshape(2, 7, 2, 7, 3).permute(0, 2, 4, 1, 3).reshape(4, -1)
    difference = (twin_of(pixels) - expected).abs()
    assert difference.max() <= LEVEL * 1.01
    assert (difference > LEVEL / 2).float().mean() < 0.02


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_kernel_is_its_twin(shape: tuple[int, int]) -> None:
    pixels = drawn(*shape)
    ours = poison(4, 3 * 7 * 7)
    kernels.patches(torch.from_numpy(pixels).to(DEVICE), 14, 7, ours)
    difference = (ours - twin_of(pixels)).abs()
    assert difference.max() <= LEVEL * 1.01
    assert (difference > 1e-6).float().mean() < 1e-3


def test_padding_is_black_and_other_patch_sizes_do() -> None:
    pixels = np.full((5, 18, 3), 255, np.uint8)
    ours = poison(9, 3 * 16)
    kernels.patches(torch.from_numpy(pixels).to(DEVICE), 12, 4, ours)
    assert (ours[:3] == -1).all() and (ours[-3:] == -1).all()
    assert (ours == 1).any()
    assert torch.equal(ours, twin_of(pixels, 12, 4))
