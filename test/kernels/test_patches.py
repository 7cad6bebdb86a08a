"""Patches of images: the reference is each family's own processing, and the kernel is the reference, to the
bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from drawing import DEVICE, poison
from torch import Tensor

from vla_accel_ros.engine.stages.memory.upload import in_memory
from vla_accel_ros.kernels.reference import image
from vla_accel_ros.kernels.reference.image import Views
from vla_accel_ros.kernels.triton import image as kernels
from vla_accel_ros.models.openvla.policy import PixelNorm
from vla_accel_ros.models.processing.conventions import BEFORE_0_5, LEROBOT, OPENPI, padded
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.models.processing.resize import resize_bilinear
from vla_accel_ros.models.smolvla import policy as smolvla_policy

OPENVLA = PixelNorm()
RULES = {
    "openpi": OPENPI.pixels,
    "lerobot": LEROBOT.pixels,
    "lerobot before 0.5": BEFORE_0_5.pixels,
    "openvla": OPENVLA.rule,
    "smolvla": smolvla_policy.PIXELS,
}
SIZES = [(14, 14), (15, 20), (20, 15), (37, 30), (5, 7), (1, 3), (40, 14), (2, 200)]
ODD = [(14, 14), (25, 20), (5, 7), (1, 3)]
EXACT, ROUNDING = 0.0, 1e-6
each_rule = pytest.mark.parametrize("name", RULES)


def drawn(height: int, width: int, edges: bool = False) -> Tensor:
    """Noise, or black and white only, where bicubic overshoots."""
    values = np.random.default_rng(height).integers(0, 2 if edges else 256, (height, width, 3))
    return torch.from_numpy((values * (255 if edges else 1)).astype(np.uint8))


def views_of(rule: PixelRule, images: list[Tensor], size: int = 14) -> Views:
    views = Views(rule, size, len(images), DEVICE)
    views.point([views.view(pixels.to(DEVICE)) for pixels in images])
    return views


def reference(name: str, pixels: Tensor, size: int) -> Tensor:
    """[C, size, size], as the family has it written; openpi's as Pillow computes it."""
    if name == "openvla":
        return OPENVLA.pixels(pixels, size)
    if name == "smolvla":
        return smolvla_policy.resize_to_corner(pixels, size)
    if name == "openpi":
        return padded(pixels[None], size, resize_bilinear)[0]
    return (BEFORE_0_5 if name == BEFORE_0_5.name else LEROBOT).resize(pixels[None], size)[0]


def cut(square: Tensor, patch: int) -> Tensor:
    """[C, S, S] -> patches [(S / patch)^2, C * patch * patch]"""
    side = square.shape[1] // patch
    return square.unflatten(1, (side, patch)).unflatten(3, (side, patch)).permute(1, 3, 0, 2, 4).reshape(
        side * side, -1
    )  # fmt: skip


@each_rule
@pytest.mark.parametrize("edges", [False, True], ids=["noise", "edges"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_twin_is_what_the_family_does(name: str, shape: tuple[int, int], edges: bool) -> None:
    pixels = drawn(*shape, edges)
    out = poison(1, 4, 7 * 7 * RULES[name].channels)
    image.patches(views_of(RULES[name], [pixels]), 7, out)
    near = EXACT if RULES[name].rounds else ROUNDING
    torch.testing.assert_close(out[0].cpu(), cut(reference(name, pixels, 14), 7), rtol=0, atol=near)


@each_rule
@pytest.mark.parametrize("shape", [(480, 640), (720, 1280)], ids=str)
def test_frames_of_real_cameras_at_the_published_size(name: str, shape: tuple[int, int]) -> None:
    pixels = drawn(*shape)
    out = poison(1, 256, 14 * 14 * RULES[name].channels)
    image.patches(views_of(RULES[name], [pixels], 224), 14, out)
    near = EXACT if RULES[name].rounds else ROUNDING
    torch.testing.assert_close(out[0].cpu(), cut(reference(name, pixels, 224), 14), rtol=0, atol=near)


@each_rule
@pytest.mark.parametrize("shape", ODD, ids=str)
def test_the_kernel_is_its_twin(name: str, shape: tuple[int, int]) -> None:
    views = views_of(RULES[name], [drawn(*shape, edges=True)])
    ours, references = (poison(1, 4, 7 * 7 * views.rule.channels) for _ in range(2))
    kernels.patches(views, 7, ours)
    image.patches(views, 7, references)
    torch.testing.assert_close(ours, references, rtol=0, atol=EXACT)


@each_rule
def test_cameras_of_different_sizes_are_read_where_the_table_points(name: str) -> None:
    first, second = [drawn(20, 15), drawn(9, 24)], [drawn(5, 7), drawn(14, 14)]
    views = views_of(RULES[name], first)
    for images in (first, second):
        views.point([views.view(pixels.to(DEVICE)) for pixels in images])
        ours = poison(2, 1, 14 * 14 * views.rule.channels)
        kernels.patches(views, 14, ours)
        for pixels, found in zip(images, ours, strict=True):
            near = EXACT if RULES[name].rounds else ROUNDING
            torch.testing.assert_close(
                found[0].cpu(), reference(name, pixels, 14).flatten(), rtol=0, atol=near
            )


@each_rule
def test_a_row_that_several_programs_share(name: str) -> None:
    views = views_of(RULES[name], [drawn(9, 31)], 98)
    ours, references = (poison(1, 49, 14 * 14 * views.rule.channels) for _ in range(2))
    kernels.patches(views, 14, ours)
    image.patches(views, 14, references)
    torch.testing.assert_close(ours, references, rtol=0, atol=EXACT)


@each_rule
@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("kernel", [image.patches, kernels.patches], ids=["twin", "kernel"])
def test_pictures_that_are_cropped_and_turned_are_read_where_they_lie(
    name: str, turns: int, kernel: Callable[..., None]
) -> None:
    whole = drawn(23, 31).numpy()
    seen = np.rot90(whole[2:20, 5:28], turns)
    memory, place = in_memory(seen)
    assert place.size < whole.size
    views = Views(RULES[name], 14, 1, DEVICE)
    views.point([views.view(torch.from_numpy(memory.copy()).to(DEVICE), place)])
    ours, copied = (poison(1, 4, 7 * 7 * views.rule.channels) for _ in range(2))
    kernel(views, 7, ours)
    kernel(views_of(RULES[name], [torch.from_numpy(np.ascontiguousarray(seen))]), 7, copied)
    torch.testing.assert_close(ours, copied, rtol=0, atol=EXACT)


def test_padding_is_black_and_other_patch_sizes_do() -> None:
    views = views_of(OPENPI.pixels, [torch.full((5, 18, 3), 255, dtype=torch.uint8)], 12)
    ours = poison(1, 9, 3 * 16)
    kernels.patches(views, 4, ours)
    assert (ours[0, :3] == -1).all() and (ours[0, -3:] == -1).all()
    assert (ours == 1).any()


@pytest.mark.gpu
@each_rule
def test_a_gpu_gives_the_pixels_that_a_cpu_gives(name: str) -> None:
    """Of whole frames, by the compiled kernel; sums in floating point, too, are added up alike."""
    for shape in ((480, 640), (720, 1280), (37, 200)):
        pixels = drawn(*shape)
        there, here = views_of(RULES[name], [pixels], 224), Views(RULES[name], 224, 1, torch.device("cpu"))
        here.point([here.view(pixels)])
        patches = 1, 256, 14 * 14 * here.rule.channels
        ours, references = poison(*patches), torch.empty(patches)
        kernels.patches(there, 14, ours)
        image.patches(here, 14, references)
        torch.testing.assert_close(ours.cpu(), references, rtol=0, atol=EXACT)
