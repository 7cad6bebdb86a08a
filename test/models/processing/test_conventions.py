"""What openpi and lerobot do to images: each against its own formula, and the GPU's way against the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import make_observation, make_policy
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vla_accel_ros.models.processing import conventions
from vla_accel_ros.models.processing.conventions import BEFORE_0_5, LEROBOT, OPENPI, resize_with_pad, to_unit
from vla_accel_ros.models.processing.resize import resize_bilinear

LEVEL = 2 / 255
SIZES = st.tuples(st.integers(2, 200), st.integers(2, 200))


def noise(size: tuple[int, int], count: int = 2, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, *size, 3), dtype=np.uint8))


def pillow(image: np.ndarray, size: int) -> torch.Tensor:
    """openpi's resize_with_pad, in two calls so that rows come first."""
    height, width = image.shape[:2]
    ratio = max(width / size, height / size)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    rows = Image.fromarray(image).resize((inner[1], height), Image.Resampling.BILINEAR)
    padded = np.zeros((size, size, 3), np.uint8)
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    resized = rows.resize((inner[1], inner[0]), Image.Resampling.BILINEAR)
    padded[top : top + inner[0], left : left + inner[1]] = np.asarray(resized)
    return to_unit(torch.from_numpy(padded)[None])[0]


@given(size=SIZES, seed=st.integers(0, 9))
def test_openpis_resize_on_a_cpu_is_within_a_level_of_pillow(size: tuple[int, int], seed: int) -> None:
    images = noise(size, seed=seed)
    ours = OPENPI.resize(images, 56)
    for image, found in zip(images.numpy(), ours, strict=True):
        torch.testing.assert_close(found, pillow(image, 56), rtol=0, atol=LEVEL + 1e-6)
        assert torch.equal(found, to_unit(torch.from_numpy(resize_with_pad(image, 56))[None])[0])


@given(size=SIZES, seed=st.integers(0, 9))
def test_the_way_of_a_gpu_is_pillow_to_the_bit(size: tuple[int, int], seed: int) -> None:
    """The same integers on any device: here they are added up on a CPU."""
    images = noise(size, seed=seed)
    ours = conventions.padded(images, 56, resize_bilinear)
    for image, found in zip(images.numpy(), ours, strict=True):
        assert torch.equal(found, pillow(image, 56))


@pytest.mark.parametrize(("which", "value"), [(LEROBOT, 0.0), (BEFORE_0_5, -1.0)], ids=["0.5.0", "0.4.4"])
@given(size=SIZES, seed=st.integers(0, 9))
def test_lerobots_resize(
    which: conventions.Conventions, value: float, size: tuple[int, int], seed: int
) -> None:
    """Its resize_with_pad_torch, written out. value: the constant_value of the two versions there."""
    images = noise(size, seed=seed)
    unit = images.permute(0, 3, 1, 2).float() / 255.0
    ratio = max(size[0], size[1]) / 56
    inner = int(size[0] / ratio) or 1, int(size[1] / ratio) or 1
    resized = F.interpolate(unit, size=inner, mode="bilinear", align_corners=False).clamp(0.0, 1.0)
    (top, odd_top), (left, odd_left) = divmod(56 - inner[0], 2), divmod(56 - inner[1], 2)
    padded = F.pad(resized, (left, left + odd_left, top, top + odd_top), value=value)
    torch.testing.assert_close(which.resize(images, 56), padded * 2 - 1, rtol=0, atol=1e-6)


@pytest.mark.parametrize("which", [OPENPI, LEROBOT], ids=lambda which: which.name)
def test_an_image_of_the_right_size_is_only_scaled(which: conventions.Conventions) -> None:
    images = noise((56, 56))
    torch.testing.assert_close(which.resize(images, 56), to_unit(images), rtol=0, atol=1e-6)


def test_cameras_of_different_sizes_keep_their_order() -> None:
    policy = make_policy()
    small, large = make_observation(0, size=(28, 28)), make_observation(1, size=(60, 90))
    images = {"base_0_rgb": large.images["base_0_rgb"], "left_wrist_0_rgb": small.images["left_wrist_0_rgb"]}
    mixed = policy.inputs(type(small)(images, small.state, small.instruction, 0)).images
    assert torch.equal(mixed[0], policy.inputs(large).images[0])
    assert torch.equal(mixed[1], policy.inputs(small).images[1])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("which", "apart"), [(OPENPI, LEVEL + 1e-6), (LEROBOT, 2e-6)], ids=["openpi", "lerobot"]
)
def test_a_gpu_is_as_near_as_can_be(which: conventions.Conventions, apart: float) -> None:
    for size in ((480, 640), (37, 200), (224, 224)):
        images = noise(size)
        there = which.resize(images.cuda(), 224).cpu()
        torch.testing.assert_close(there, which.resize(images, 224), rtol=0, atol=apart)
