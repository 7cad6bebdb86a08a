"""Images of GR00T: shapes kept or squeezed, cropped, and cut to whole blocks, as OpenCV, torch and Qwen
do."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from vla_accel_ros.models.groot.pixels import Geometry
from vla_accel_ros.models.processing.pixels import centred


def cosmos(crop: float | None, area: bool = True, letterbox: bool = False) -> Geometry:
    """The geometry of the published N1.7, but for these."""
    return Geometry(256, (256, 256), crop, area, letterbox, block=32, min_pixels=65536)


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (256, 352)),
        ((256, 256), (256, 256)),
        ((720, 1280), (256, 448)),
        ((640, 480), (352, 256)),
    ],
)
def test_an_image_keeps_its_shape_up_to_whole_blocks(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    geometry = cosmos(0.95)
    assert geometry.resized(picture(*size)).shape[:2] == geometry.size(*size) == expected


@pytest.mark.parametrize("area", [True, False])
def test_a_letterbox_makes_any_image_a_square(area: bool) -> None:
    geometry = cosmos(0.95, area, letterbox=True)
    assert geometry.resized(picture(90, 160)).shape[:2] == geometry.size(90, 160) == (256, 256)
    rows = geometry.resized(np.full((90, 160, 3), 255, np.uint8))[:, 128, 0]
    assert rows[0] == 0 == rows[-1]
    assert rows[128] == 255


def test_without_keeping_the_shape_the_crop_is_rounded() -> None:
    """230 of 256: what is left of a line beside the border shows where the crop begins."""
    image = np.zeros((256, 256, 3), np.uint8)
    image[13] = 255
    geometry = cosmos(230 / 256, area=False)
    assert geometry.resized(image)[:, 128, 0].argmax() == 0
    assert cosmos(228 / 256, area=False).resized(image)[:, 128, 0].max() < 128


def test_qwens_size_agrees_with_transformers() -> None:
    smart_resize = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    ).smart_resize
    geometry = Geometry(256, (256, 256), min_pixels=4096, max_pixels=65536, block=32)
    for size in [(64, 64), (40, 300), (500, 300), (256, 341), (33, 95), (1080, 1920)]:
        assert geometry.whole_blocks(*size) == tuple(smart_resize(*size, 32, 4096, 65536)), size


def test_one_size_is_left_as_it_is() -> None:
    image = picture(256, 256)
    assert np.array_equal(cosmos(None).resized(image), image)
    assert centred(torch.tensor([[[0, 255, 51]]], dtype=torch.uint8)).flatten().tolist() == pytest.approx(
        [-1, 1, -0.6]
    )


def test_whether_every_image_becomes_one_square_is_known() -> None:
    assert cosmos(0.95).side is None
    assert cosmos(0.95, letterbox=True).side == cosmos(0.95, area=False).side == 256
    small = Geometry(64, (64, 64), 0.95, area=True, letterbox=True, block=32, min_pixels=65536)
    assert small.side == small.resized(picture(40, 90)).shape[0] == 256
    assert Geometry(224, (224, 224)).side == 224


def test_by_area_is_opencvs() -> None:
    image = picture(200, 300)
    ours = Geometry(100, (100, 100), None, block=50).resized(image)
    assert np.array_equal(ours, cv2.resize(image, (150, 100), interpolation=cv2.INTER_AREA))


def test_a_sliver_is_refused() -> None:
    with pytest.raises(ValueError, match="too narrow"):
        cosmos(None).resized(picture(1, 300))
