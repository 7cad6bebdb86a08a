"""Camera images of GR00T: resized and cropped as in training, on the host, to sides of whole blocks.

N1.7 keeps the shape of an image, so each camera has its own size; N1.5 squeezes it to a square. Two
programs trained N1.7: one resizes by area (OpenCV), one by torch's bicubic filter on bytes, and Qwen's own
resize to whole blocks follows both. All of it is theirs to the bit on a CPU; it runs there on every machine,
since on a GPU the references differ from themselves. The network gets levels / 255, from -1 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Geometry:
    """How an image is resized and cropped.

    edge: the shorter side, or both sides for a filter that squeezes. target: height and width after the crop,
    if the filter squeezes. crop: the share of each side that is kept. area: by area, keeping the shape.
    letterbox: black makes it square first. block: sides are multiples of it in the end; None = just `target`,
    by the bicubic filter (N1.5). min_pixels, max_pixels: pixels of the result.
    """

    edge: int
    target: tuple[int, int]
    crop: float | None = None
    area: bool = True
    letterbox: bool = False
    block: int | None = None
    min_pixels: int = 1
    max_pixels: int = 1 << 24

    def resized(self, image: np.ndarray) -> np.ndarray:
        """uint8 [H, W, 3] -> uint8 [h, w, 3]."""
        if self.block is None:
            return bicubic(image, self.target)
        if self.letterbox:
            image = _square(image)
        image = self._by_area(image) if self.area else self._squeezed(image)
        return bicubic(image, self.whole_blocks(*image.shape[:2]))

    @property
    def side(self) -> int | None:
        """The side of the square that every image becomes; None if sizes differ."""
        if self.area and not self.letterbox and self.block is not None:
            return None
        height, width = self.size(self.edge, self.edge)
        return height if height == width else None

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The size that an image of this size gets."""
        if self.block is None:
            return self.target
        if self.letterbox:
            height = width = max(height, width)
        if not self.area:
            return self.whole_blocks(*self.target)
        size = self._kept(*self._edged(height, width), math.floor)
        return self.whole_blocks(*self._edged(*size))

    def whole_blocks(self, height: int, width: int) -> tuple[int, int]:
        """The nearest size of whole blocks with as many pixels as Qwen takes. Raises ValueError for an image
        that is 200 times as long as wide, as Qwen does."""
        block, pixels = self.block or 1, height * width
        if max(height, width) > 200 * min(height, width):
            raise ValueError(f"an image of {height} x {width} pixels is too narrow for the network.")
        sides = [max(block, round(side / block) * block) for side in (height, width)]
        if sides[0] * sides[1] > self.max_pixels:
            factor = math.sqrt(pixels / self.max_pixels)
            sides = [max(block, math.floor(side / factor / block) * block) for side in (height, width)]
        elif sides[0] * sides[1] < self.min_pixels:
            factor = math.sqrt(self.min_pixels / pixels)
            sides = [math.ceil(side * factor / block) * block for side in (height, width)]
        return sides[0], sides[1]

    def _by_area(self, image: np.ndarray) -> np.ndarray:
        image = _area(image, self._edged(*image.shape[:2]))
        height, width = image.shape[:2]
        image = _centre(image, self._kept(height, width, math.floor))
        return _area(image, self._edged(*image.shape[:2]))

    def _squeezed(self, image: np.ndarray) -> np.ndarray:
        inner = self._kept(self.edge, self.edge, round)
        return bicubic(_centre(bicubic(image, (self.edge, self.edge)), inner), self.target)

    def _edged(self, height: int, width: int) -> tuple[int, int]:
        scale = self.edge / min(height, width)
        return round(height * scale), round(width * scale)

    def _kept(self, height: int, width: int, whole: Callable[[float], int]) -> tuple[int, int]:
        if self.crop is None or not 0 < self.crop < 1:
            return height, width
        return max(1, whole(height * self.crop)), max(1, whole(width * self.crop))


def bicubic(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [*size, 3], by torch's antialiased filter, which rounds after each pass."""
    if image.shape[:2] == size:
        return image
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    return F.interpolate(pixels, size=size, mode="bicubic", antialias=True)[0].permute(1, 2, 0).numpy()


def _area(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if image.shape[:2] == size:
        return image
    return cv2.resize(np.ascontiguousarray(image), size[::-1], interpolation=cv2.INTER_AREA)


def _centre(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    row, column = ((have - keep) // 2 for have, keep in zip(image.shape[:2], size, strict=True))
    return image[row : row + size[0], column : column + size[1]]


def _square(image: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    edge = max(height, width)
    square = np.zeros((edge, edge, 3), np.uint8)
    row, column = (edge - height) // 2, (edge - width) // 2
    square[row : row + height, column : column + width] = image
    return square
