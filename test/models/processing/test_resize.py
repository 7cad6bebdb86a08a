"""Our resizes are Pillow's, pixel for pixel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vla_accel_ros.models.processing.resize import resize_bicubic, resize_bilinear


def pillow(image: np.ndarray, size: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC))


def pillow_rows_first(image: np.ndarray, size: int) -> np.ndarray:
    """In two calls, because from Pillow 13 on one call takes the columns of a tall image first."""
    rows = Image.fromarray(image).resize((size, image.shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(rows.resize((size, size), Image.Resampling.BICUBIC))


@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    size=st.sampled_from([1, 7, 28, 56, 224]),
    seed=st.integers(0, 99),
)
def test_every_pixel_is_pillows(height: int, width: int, size: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(resize_bicubic(torch.from_numpy(image), size), pillow_rows_first(image, size))


@pytest.mark.parametrize("shape", [(480, 640), (720, 1280), (1080, 1920), (1944, 2592)])
def test_frames_of_real_cameras_with_hard_edges(shape: tuple[int, int]) -> None:
    """Black and white edges overshoot, and must be clipped where Pillow clips them."""
    image = np.random.default_rng(0).integers(0, 2, (*shape, 3), dtype=np.uint8) * 255
    image[: shape[0] // 2, : shape[1] // 2] = 255
    assert np.array_equal(resize_bicubic(torch.from_numpy(image), 224), pillow(image, 224))


def test_a_view_with_any_strides_is_taken() -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    view = image.transpose(0, 1)[::2]
    assert torch.equal(resize_bicubic(view, 28), resize_bicubic(view.contiguous(), 28))


@pytest.mark.gpu
def test_a_gpu_gives_the_same_pixels() -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8))
    assert torch.equal(resize_bicubic(image.cuda(), 224).cpu(), resize_bicubic(image, 224))


@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    size=st.tuples(st.integers(1, 120), st.integers(1, 120)),
    seed=st.integers(0, 99),
)
def test_bilinear_is_pillows_too_for_any_size(
    height: int, width: int, size: tuple[int, int], seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    rows = Image.fromarray(image).resize((size[1], height), Image.Resampling.BILINEAR)
    expected = np.asarray(rows.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    assert np.array_equal(resize_bilinear(torch.from_numpy(image), *size), expected)


@pytest.mark.parametrize("resize", [resize_bicubic, resize_bilinear])
def test_several_images_are_resized_as_each_alone(resize: Callable[..., torch.Tensor]) -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 40, 61, 3), dtype=np.uint8))
    together = resize(images, 28, 20)
    assert together.shape == (2, 3, 28, 20, 3)
    for index in np.ndindex(2, 3):
        assert torch.equal(together[index], resize(images[index], 28, 20))


@pytest.mark.gpu
def test_a_gpu_gives_pillows_bilinear_pixels() -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 480, 640, 3), dtype=np.uint8))
    assert torch.equal(resize_bilinear(image.cuda(), 168, 224).cpu(), resize_bilinear(image, 168, 224))
